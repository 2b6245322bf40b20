#include "engine/model/tokenizer.h"

#include "engine/base/error.h"
#include "engine/model/added_tokens.h"
#include "engine/model/byte_alphabet.h"
#include "engine/model/tokenizer_file.h"
#include "engine/model/utf8.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <unordered_map>
#include <utility>

namespace keyhole {
namespace {

/// `<0x0A>` as its byte; anything else as it is.
std::string byte_from_fallback(std::string text) {
    if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return text;
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
    if (error != std::errc() || end != text.data() + 5) return text;
    return std::string(1, static_cast<char>(byte));
}

std::string stripped(std::string_view text, const DecodeStep& step) {
    for (int i = 0; i < step.n_start && text.starts_with(step.from); ++i)
        text.remove_prefix(step.from.size());
    for (int i = 0; i < step.n_end && text.ends_with(step.from); ++i) text.remove_suffix(step.from.size());
    return std::string(text);
}

std::string decoded(std::string text, const DecodeStep& step) {
    switch (step.kind) {
        case DecodeStep::Kind::byte_level: {
            auto bytes = bytes_from_alphabet(text);
            return bytes ? std::move(*bytes) : text;  // added tokens hold plain text
        }
        case DecodeStep::Kind::byte_fallback:
            return byte_from_fallback(std::move(text));
        case DecodeStep::Kind::replace:
            return replaced(text, step.from, step.to);
        case DecodeStep::Kind::strip:
            return stripped(text, step);
        case DecodeStep::Kind::fuse:
            return text;
    }
    return text;
}

/// Control characters as signs; nothing for those that print.
std::string_view sign_of(char32_t c) {
    switch (c) {
        case '\n':
            return "↵";
        case '\r':
            return "␍";
        case '\t':
            return "⇥";
        default:
            return {};
    }
}

}  // namespace

struct Tokenizer::Impl {
    TokenizerParts parts;
    AddedTokenFinder in_raw, in_normalized;
    std::vector<std::string> bytes;  // [n_vocab], decoded one by one
    std::vector<char> special;       // [n_vocab]
    std::vector<DecodeStep> whole;   // decoder steps behind the fuse

    /// Pieces that were met before in this call: most of a text is repeated words.
    using WordCache = std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>>;

    explicit Impl(TokenizerParts read) : parts(std::move(read)) {
        special.assign(parts.tokens.size(), 0);
        for (const AddedToken& token : parts.added) {
            if (token.special) special[static_cast<std::size_t>(token.id)] = 1;
            AddedToken wanted = token;
            if (token.normalized) wanted.content = parts.normalizer.apply(token.content);
            (token.normalized ? in_normalized : in_raw).add(std::move(wanted));
        }
        auto fuse = std::find_if(parts.decoder.begin(), parts.decoder.end(),
                                 [](const DecodeStep& step) { return step.kind == DecodeStep::Kind::fuse; });
        bytes = parts.tokens;
        for (std::string& token : bytes) {
            for (auto step = parts.decoder.begin(); step != fuse; ++step)
                token = decoded(std::move(token), *step);
        }
        for (; fuse != parts.decoder.end(); ++fuse) {
            // A fused text is no single token any more.
            if (fuse->kind == DecodeStep::Kind::replace || fuse->kind == DecodeStep::Kind::strip)
                whole.push_back(*fuse);
        }
    }

    /// A stretch without added tokens.
    void encode_words(std::string_view text, std::vector<int>& ids) const {
        std::deque<std::string> arena;
        std::vector<std::string_view> pieces;
        parts.pre_tokenizer.split(text, arena, pieces);
        WordCache cache;
        for (const std::string_view piece : pieces) {
            constexpr std::size_t kCached = 64;
            if (piece.size() > kCached || pieces.size() == 1) {
                parts.bpe.encode(piece, ids);
                continue;
            }
            if (const auto met = cache.find(piece); met != cache.end()) {
                const auto [begin, end] = met->second;
                for (std::size_t i = begin; i < end; ++i) ids.push_back(ids[i]);
                continue;
            }
            const std::size_t begin = ids.size();
            parts.bpe.encode(piece, ids);
            cache.emplace(piece, std::pair(begin, ids.size()));
        }
    }

    void encode_stretch(std::string_view raw, std::vector<int>& ids) const {
        if (parts.normalizer.empty() && in_normalized.empty()) return encode_words(raw, ids);
        const std::string text = parts.normalizer.apply(raw);
        for (const TextPart& part : in_normalized.split(text)) {
            if (part.id >= 0) {
                ids.push_back(part.id);
            } else {
                encode_words(part.text, ids);
            }
        }
    }

    bool known(int id) const { return id >= 0 && static_cast<std::size_t>(id) < bytes.size(); }
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
    Tokenizer tokenizer;
    tokenizer.impl_ = std::make_unique<Impl>(read_tokenizer_file(tokenizer_json));
    return tokenizer;
}

int Tokenizer::n_vocab() const {
    return static_cast<int>(impl_->bytes.size());
}

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special) const {
    std::vector<int> ids;
    if (add_special) ids = impl_->parts.before;
    for (const TextPart& part : impl_->in_raw.split(text)) {
        if (part.id >= 0) {
            ids.push_back(part.id);
        } else {
            impl_->encode_stretch(part.text, ids);
        }
    }
    if (add_special) ids.insert(ids.end(), impl_->parts.after.begin(), impl_->parts.after.end());
    return ids;
}

std::string Tokenizer::decode(std::span<const int> ids, bool with_special) const {
    std::string text;
    for (const int id : ids) {
        if (with_special || !is_special(id)) text += token_bytes(id);
    }
    for (const DecodeStep& step : impl_->whole) text = decoded(std::move(text), step);
    return text;
}

std::string Tokenizer::token_bytes(int id) const {
    return impl_->known(id) ? impl_->bytes[static_cast<std::size_t>(id)] : std::string();
}

std::string Tokenizer::display(int id) const {
    if (!impl_->known(id)) return fmt::format("<{}>", id);
    const std::string& bytes = impl_->bytes[static_cast<std::size_t>(id)];
    std::string shown;
    for (std::string_view rest = bytes; !rest.empty();) {
        const std::size_t length = utf8_length(rest);
        const char32_t c = length > 0 ? utf8_decode(rest.substr(0, length)) : U'\0';
        if (length == 0 || (sign_of(c).empty() && (c < 0x20 || (c >= 0x7f && c < 0xa0)))) {
            for (std::size_t i = 0; i < std::max<std::size_t>(length, 1); ++i) {
                shown += fmt::format("<0x{:02X}>", static_cast<unsigned char>(rest[i]));
            }
        } else {
            shown += sign_of(c).empty() ? rest.substr(0, length) : sign_of(c);
        }
        rest.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return shown;
}

bool Tokenizer::is_special(int id) const {
    return impl_->known(id) && impl_->special[static_cast<std::size_t>(id)] != 0;
}

}  // namespace keyhole
