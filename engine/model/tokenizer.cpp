#include "engine/model/tokenizer.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/utf8.h"
#include "engine/model/added_tokens.h"
#include "engine/model/byte_alphabet.h"
#include "engine/model/gguf_tokenizer.h"
#include "engine/model/tokenizer_file.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>

namespace keyhole {
namespace {

/// Returns the byte of `<0x0A>`; any other text unchanged.
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
        case DecodeStep::Kind::metaspace:
            return replaced(text, step.from, step.to);
        case DecodeStep::Kind::strip:
            return stripped(text, step);
        case DecodeStep::Kind::fuse:
            return text;
    }
    return text;
}

/// Returns a visible sign for a control character, or nothing for a printable one.
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

/// Returns work(). Names the file in its errors: faults of a tokenizer file appear only when it is used.
template <class Work>
auto with_file_named(const std::filesystem::path& path, Work work) {
    try {
        return work();
    } catch (const Error& error) {
        fail(error.code(), "cannot use {}: {}; choose another model", path.string(), error.what());
    }
}

}  // namespace

struct Tokenizer::Impl {
    TokenizerParts parts;
    AddedTokenFinder in_raw, in_normalized;
    int limit = std::numeric_limits<int>::max();  // ids from here on have no embedding
    std::vector<std::string> bytes;               // [n_vocab], decoded one by one
    std::vector<char> special;                    // [n_vocab]
    std::vector<DecodeStep> each, whole;  // decoder steps for a token, and for the text after the fuse

    /// The state of one call of encode().
    struct Encoding {
        std::vector<int> ids;
        std::deque<std::string> arena;  // texts that pieces point into
        /// Ids of pieces that occurred before, as a range of `ids`: most of a text is repeated words.
        std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> met;
    };

    static std::unique_ptr<Impl> made_of(TokenizerParts parts) {
        const std::filesystem::path path = parts.path;
        return with_file_named(path, [&] { return std::make_unique<Impl>(std::move(parts)); });
    }

    explicit Impl(TokenizerParts read) : parts(std::move(read)) {
        parts.ids = {};
        parts.added_at = {};
        special.assign(parts.tokens.size(), 0);
        std::vector<AddedToken> raw, normalized;
        for (const AddedToken& token : parts.added) {
            if (token.special) special[to_index(token.id)] = 1;
            AddedToken wanted = token;
            if (token.normalized) wanted.content = parts.normalizer.apply(token.content);
            (token.normalized ? normalized : raw).push_back(std::move(wanted));
        }
        in_raw = AddedTokenFinder(std::move(raw));
        in_normalized = AddedTokenFinder(std::move(normalized));
        const auto fuse =
            std::find_if(parts.decoder.begin(), parts.decoder.end(),
                         [](const DecodeStep& step) { return step.kind == DecodeStep::Kind::fuse; });
        each.assign(parts.decoder.begin(), fuse);
        for (auto step = fuse; step != parts.decoder.end(); ++step) {
            // A fused text is not a single token any more.
            if (step->kind == DecodeStep::Kind::replace || step->kind == DecodeStep::Kind::strip)
                whole.push_back(*step);
        }
        std::size_t n_written = 0, n_bytes = 0;
        for (const std::string& token : parts.tokens) {
            n_written += token.size();
            n_bytes += bytes.emplace_back(decoded_token(token, false)).size();
            if (n_bytes > 16 * n_written + (1 << 20)) {
                fail(ErrorCode::unsupported, "its decoder makes {} bytes of {}", n_bytes, n_written);
            }
        }
    }

    std::string decoded_token(std::string token, bool is_first) const {
        const std::size_t most = most_grown(token.size());
        for (const DecodeStep& step : each) {
            const bool drops = is_first && step.drops_at_begin;
            token = drops ? replaced(token, step.from, {}) : decoded(std::move(token), step);
            if (token.size() > most) {
                fail(ErrorCode::unsupported, "its decoder makes {} bytes of one token", token.size());
            }
        }
        return token;
    }

    void encode_piece(std::string_view piece, std::vector<int>& ids) const {
        parts.unigram ? parts.unigram->encode(piece, ids) : parts.bpe.encode(piece, ids);
    }

    /// Encodes a stretch without added tokens; its bytes must stay valid until the call ends.
    void encode_words(std::string_view text, bool is_begin, Encoding& call) const {
        std::vector<std::string_view> cut, pieces;
        parts.pre_tokenizer.split(text, is_begin, call.arena, cut);
        if (parts.unigram)
            pieces = std::move(cut);
        else
            for (const std::string_view piece : cut) parts.bpe.cut(piece, pieces);
        for (const std::string_view piece : pieces) {
            constexpr std::size_t kCached = 64;
            if (piece.size() > kCached) {
                encode_piece(piece, call.ids);
                continue;
            }
            const std::size_t begin = call.ids.size();
            const auto [met, is_new] = call.met.try_emplace(piece);
            if (is_new) {
                encode_piece(piece, call.ids);
                met->second = {begin, call.ids.size()};
            } else {
                for (std::size_t i = met->second.first; i < met->second.second; ++i)
                    call.ids.push_back(call.ids[i]);
            }
        }
    }

    void encode_stretch(std::string_view raw, bool is_begin, Encoding& call) const {
        if (parts.normalizer.empty() && in_normalized.empty()) return encode_words(raw, is_begin, call);
        const std::string_view text = call.arena.emplace_back(parts.normalizer.apply(raw));
        for (const TextPart& part : in_normalized.split(text)) {
            if (part.id >= 0) {
                call.ids.push_back(part.id);
            } else {
                encode_words(part.text, is_begin && part.text.data() == text.data(), call);
            }
        }
    }

    bool known(int id) const { return id >= 0 && to_index(id) < bytes.size(); }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
    return Tokenizer(Impl::made_of(read_tokenizer_file(tokenizer_json)));
}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
    return Tokenizer(Impl::made_of(read_tokenizer_folder(folder)));
}

Tokenizer Tokenizer::from_gguf(const GgufFile& file) {
    return Tokenizer(Impl::made_of(read_gguf_tokenizer(file)));
}

Tokenizer Tokenizer::of_bytes(int n_vocab) {
    TokenizerParts parts;
    std::unordered_map<std::string, int> ids;
    for (int byte = 0; byte < std::min(256, n_vocab); ++byte) {
        parts.tokens.emplace_back(1, static_cast<char>(byte));
        ids.emplace(parts.tokens.back(), byte);
    }
    parts.tokens.resize(to_index(n_vocab));
    parts.bpe = Bpe({.byte_level = true}, std::move(ids), {});
    return Tokenizer(std::make_unique<Impl>(std::move(parts)));
}

int Tokenizer::n_vocab() const {
    return std::min(static_cast<int>(impl_->bytes.size()), impl_->limit);
}

void Tokenizer::limit_to(int n_vocab) {
    impl_->limit = n_vocab;
}

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special) const {
    Impl::Encoding call;
    if (add_special) call.ids = impl_->parts.before;
    with_file_named(impl_->parts.path, [&] {
        for (const TextPart& part : impl_->in_raw.split(text)) {
            if (part.id >= 0) {
                call.ids.push_back(part.id);
            } else {
                impl_->encode_stretch(part.text, part.text.data() == text.data(), call);
            }
        }
    });
    if (add_special) call.ids.insert(call.ids.end(), impl_->parts.after.begin(), impl_->parts.after.end());
    for (const int id : call.ids)
        if (id >= impl_->limit)
            fail(ErrorCode::wrong_use,
                 "cannot use a text with the token {} (id {}): the model's vocabulary ends at id {}, see {}; "
                 "leave the token out",
                 shown_text(token_bytes(id)), id, impl_->limit - 1, impl_->parts.path.string());
    return std::move(call.ids);
}

std::string Tokenizer::decode(std::span<const int> ids, bool with_special) const {
    return with_file_named(impl_->parts.path, [&] {
        std::string text;
        bool is_first = true;
        for (const int id : ids) {
            if (!with_special && is_special(id)) continue;
            if (is_first && impl_->known(id)) {
                text += impl_->decoded_token(impl_->parts.tokens[to_index(id)], true);
            } else {
                text += token_bytes(id);
            }
            is_first = false;
        }
        const std::size_t most = most_grown(text.size());
        for (const DecodeStep& step : impl_->whole) {
            text = decoded(std::move(text), step);
            if (text.size() > most)
                fail(ErrorCode::unsupported, "its decoder makes {} bytes of a text", text.size());
        }
        return text;
    });
}

std::string Tokenizer::token_bytes(int id) const {
    return impl_->known(id) ? impl_->bytes[to_index(id)] : std::string();
}

std::string Tokenizer::display(int id) const {
    if (!impl_->known(id)) return fmt::format("<{}>", id);
    const std::string& bytes = impl_->bytes[to_index(id)];
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
    return impl_->known(id) && impl_->special[to_index(id)] != 0;
}

const std::string& Tokenizer::chat_template() const {
    return impl_->parts.chat_template;
}

const std::vector<std::pair<std::string, std::string>>& Tokenizer::named_tokens() const {
    return impl_->parts.named;
}

std::vector<std::string> Tokenizer::added_texts() const {
    std::vector<std::string> texts;
    for (const AddedToken& token : impl_->parts.added) texts.push_back(token.content);
    return texts;
}

const std::vector<int>& Tokenizer::ids_before() const {
    return impl_->parts.before;
}

const std::vector<std::string>& Tokenizer::warnings() const {
    return impl_->parts.warnings;
}

}  // namespace keyhole
