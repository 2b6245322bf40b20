#include "engine/model/tokenizer.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/model/bpe.h"
#include "engine/model/split.h"

#include <nlohmann/json.hpp>

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kBlankSign = "\u2581";  // SentencePiece writes a blank so

std::string utf8(int code_point) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const utf8proc_ssize_t n = utf8proc_encode_char(code_point, bytes.data());
    return {reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n)};
}

/// GPT-2's alphabet: every byte as a printable character; those that have none of their own count up from 256.
std::array<int, 256> byte_alphabet() {
    std::array<int, 256> code_points{};
    int next = 256;
    for (int b = 0; b < 256; ++b) {
        const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        code_points[static_cast<std::size_t>(b)] = printable ? b : next++;
    }
    return code_points;
}

/// Length of the UTF-8 character at the beginning, 0 when it is broken.
std::size_t character_length(std::string_view text) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                                static_cast<utf8proc_ssize_t>(text.size()), &code_point);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
}

}  // namespace

struct Tokenizer::Impl {
    std::string file;
    std::vector<std::string> bytes;  // of every id, as decoded
    std::vector<bool> special;
    std::unordered_map<std::string, int>
        symbols;                      // vocabulary as BPE sees it: raw bytes (byte level) or text
    std::array<int, 256> byte_ids{};  // id of a single byte, -1: none
    Bpe bpe;
    bool ignore_merges = false;
    int unknown = -1;
    bool strips_first_blank = false;
    std::vector<std::pair<std::string, int>> added;  // longest first
    std::vector<int> in_front, behind;               // what the post-processor adds
    std::unique_ptr<Normalizer> normalizer;
    std::unique_ptr<PreTokenizer> pre_tokenizer;

    [[noreturn]] void refuse(const std::string& what) const {
        fail(ErrorCode::unsupported, "{}: {} is not supported; byte-level and SentencePiece-style BPE are",
             file, what);
    }

    void set(int id, std::string text, bool is_special) {
        if (id < 0 || id > (1 << 24)) fail(ErrorCode::bad_file, "{}: token id {} is out of range", file, id);
        const std::size_t i = static_cast<std::size_t>(id);
        if (bytes.size() <= i) {
            bytes.resize(i + 1);
            special.resize(i + 1, false);
        }
        bytes[i] = std::move(text);
        special[i] = is_special;
    }

    /// Text of a byte-level token as the bytes that it stands for.
    std::string raw_bytes(const std::string& token) const {
        static const std::unordered_map<std::string, char> bytes_of = [] {
            std::unordered_map<std::string, char> map;
            const auto alphabet = byte_alphabet();
            for (std::size_t b = 0; b < 256; ++b) map[utf8(alphabet[b])] = static_cast<char>(b);
            return map;
        }();
        std::string out;
        for (std::string_view rest = token; !rest.empty();) {
            const std::size_t n = std::max<std::size_t>(1, character_length(rest));
            const auto found = bytes_of.find(std::string(rest.substr(0, n)));
            if (found == bytes_of.end()) return token;  // an added token written out
            out += found->second;
            rest.remove_prefix(n);
        }
        return out;
    }

    void read_model(const Json& model) {
        if (model.value("type", std::string("BPE")) != "BPE" || !model.contains("merges"))
            refuse("model " + model.value("type", std::string("without a type")));
        for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (model.contains(affix) && model.at(affix).is_string() &&
                !model.at(affix).get<std::string>().empty())
                refuse(affix);
        ignore_merges = model.value("ignore_merges", false);
        const bool byte_level = pre_tokenizer->byte_level(),
                   byte_fallback = model.value("byte_fallback", false);
        std::unordered_map<std::string, int> ids;
        for (const auto& entry : model.at("vocab").items()) {
            const int id = entry.value().get<int>();
            const std::string symbol = byte_level ? raw_bytes(entry.key()) : entry.key();
            set(id, symbol, false);
            ids[entry.key()] = id;
            symbols[symbol] = id;
        }
        byte_ids.fill(-1);
        for (int b = 0; b < 256; ++b) {
            const auto found = byte_level      ? symbols.find(std::string(1, static_cast<char>(b)))
                               : byte_fallback ? symbols.find(fmt::format("<0x{:02X}>", b))
                                               : symbols.end();
            if (found == symbols.end()) continue;
            byte_ids[static_cast<std::size_t>(b)] = found->second;
            bytes[static_cast<std::size_t>(found->second)] = std::string(1, static_cast<char>(b));
        }
        if (!byte_level)
            for (std::string& text : bytes)
                for (std::size_t at = text.find(kBlankSign); at != std::string::npos;
                     at = text.find(kBlankSign, at + 1))
                    text.replace(at, kBlankSign.size(), " ");
        if (model.contains("unk_token") && model.at("unk_token").is_string()) {
            const auto found = ids.find(model.at("unk_token").get<std::string>());
            if (found != ids.end()) unknown = found->second;
        }
        for (const Json& merge : model.at("merges")) {
            std::string left, right;
            if (merge.is_array() && merge.size() == 2) {
                left = merge[0].get<std::string>();
                right = merge[1].get<std::string>();
            } else {
                const std::string text = merge.get<std::string>();
                const std::size_t blank = text.find(' ');
                left = text.substr(0, blank);
                right = blank == std::string::npos ? "" : text.substr(blank + 1);
            }
            const auto a = ids.find(left), b = ids.find(right), both = ids.find(left + right);
            if (a == ids.end() || b == ids.end() || both == ids.end())
                fail(ErrorCode::bad_file, "{}: merge '{} {}' names a token that is not in the vocabulary",
                     file, left, right);
            bpe.add_merge(a->second, b->second, both->second);
        }
    }

    void read_added(const Json& tokens) {
        for (const Json& token : tokens) {
            const std::string content = token.at("content").get<std::string>();
            for (const char* flag : {"single_word", "lstrip", "rstrip"})
                if (token.value(flag, false)) refuse(fmt::format("added token '{}' with {}", content, flag));
            set(token.at("id").get<int>(), content, token.value("special", false));
            added.emplace_back(content, token.at("id").get<int>());
        }
        std::stable_sort(added.begin(), added.end(),
                         [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
    }

    void read_post_processor(const Json& json) {
        if (json.is_null()) return;
        const std::string type = json.value("type", std::string("?"));
        if (type == "ByteLevel") return;  // moves offsets only
        if (type == "Sequence") {
            for (const Json& part : json.at("processors")) read_post_processor(part);
            return;
        }
        if (type != "TemplateProcessing") refuse("post-processor " + type);
        bool seen_text = false;
        for (const Json& piece : json.at("single")) {
            if (piece.contains("Sequence")) {
                seen_text = true;
                continue;
            }
            const std::string name = piece.at("SpecialToken").at("id").get<std::string>();
            for (const Json& id : json.at("special_tokens").at(name).at("ids"))
                (seen_text ? behind : in_front).push_back(id.get<int>());
        }
    }

    void read_decoder(const Json& json) {
        if (json.is_null()) return;
        const std::string type = json.value("type", std::string("?"));
        if (type == "Sequence") {
            for (const Json& part : json.at("decoders")) read_decoder(part);
        } else if (type == "Strip") {
            strips_first_blank = json.value("content", std::string()) == " " && json.value("start", 0) == 1;
        } else if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse" && type != "Replace") {
            refuse("decoder " + type);
        }
    }

    /// Text without added tokens.
    void encode_plain(std::string_view text, std::vector<int>& out) const {
        if (text.empty()) return;
        for (const std::string& piece : pre_tokenizer->split(normalizer->apply(text)))
            encode_piece(piece, out);
    }

    void encode_piece(const std::string& piece, std::vector<int>& out) const {
        if (ignore_merges) {
            const auto whole = symbols.find(piece);
            if (whole != symbols.end()) {
                out.push_back(whole->second);
                return;
            }
        }
        std::vector<int> ids;
        for (std::string_view rest = piece; !rest.empty();) {
            std::size_t n =
                pre_tokenizer->byte_level() ? 1 : std::max<std::size_t>(1, character_length(rest));
            const auto found = symbols.find(std::string(rest.substr(0, n)));
            if (found != symbols.end()) {
                ids.push_back(found->second);
            } else if (std::all_of(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(n),
                                   [&](char c) { return byte_id(c) >= 0; })) {
                for (char c : rest.substr(0, n)) ids.push_back(byte_id(c));
            } else if (unknown >= 0 && (ids.empty() || ids.back() != unknown)) {
                ids.push_back(unknown);
            }
            rest.remove_prefix(n);
        }
        bpe.merge(ids);
        out.insert(out.end(), ids.begin(), ids.end());
    }

    int byte_id(char c) const { return byte_ids[static_cast<unsigned char>(c)]; }
};

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
    Tokenizer tokenizer;
    Impl& t = *tokenizer.impl_;
    t.file = path.string();
    try {
        const Json json = Json::parse(read_text_file(path));
        auto part = [&](const char* name) { return json.contains(name) ? json.at(name) : Json(); };
        t.normalizer = std::make_unique<Normalizer>(part("normalizer"), t.file);
        t.pre_tokenizer = std::make_unique<PreTokenizer>(part("pre_tokenizer"), t.file);
        t.read_model(json.at("model"));
        t.read_added(json.value("added_tokens", Json::array()));
        t.read_post_processor(part("post_processor"));
        t.read_decoder(part("decoder"));
    } catch (const Json::exception&) {
        fail(ErrorCode::bad_file,
             "{} is not a tokenizer.json (a model with vocab and merges is needed); download the file again",
             path.string());
    }
    return tokenizer;
}

int Tokenizer::n_vocab() const {
    return static_cast<int>(impl_->bytes.size());
}

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special) const {
    std::vector<int> out;
    if (add_special) out = impl_->in_front;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
        const auto found = std::find_if(impl_->added.begin(), impl_->added.end(), [&](const auto& token) {
            return !token.first.empty() && text.substr(at).starts_with(token.first);
        });
        if (found == impl_->added.end()) {
            ++at;
            continue;
        }
        impl_->encode_plain(text.substr(begin, at - begin), out);
        out.push_back(found->second);
        begin = at += found->first.size();
    }
    impl_->encode_plain(text.substr(begin), out);
    if (add_special) out.insert(out.end(), impl_->behind.begin(), impl_->behind.end());
    return out;
}

std::string Tokenizer::decode(std::span<const int> ids, bool with_special) const {
    std::string out;
    bool first = true;
    for (int id : ids) {
        if (is_special(id) && !with_special) continue;
        const std::string piece = token_bytes(id);
        out += first && impl_->strips_first_blank && piece.starts_with(' ') ? piece.substr(1) : piece;
        first = false;
    }
    return out;
}

std::string Tokenizer::token_bytes(int id) const {
    return id >= 0 && id < n_vocab() ? impl_->bytes[static_cast<std::size_t>(id)] : std::string();
}

bool Tokenizer::is_special(int id) const {
    return id >= 0 && id < n_vocab() && impl_->special[static_cast<std::size_t>(id)];
}

std::string Tokenizer::display(int id) const {
    const std::string bytes = token_bytes(id);
    std::string out;
    for (std::string_view rest = bytes; !rest.empty();) {
        const std::size_t n = character_length(rest);
        const unsigned char c = static_cast<unsigned char>(rest.front());
        if (n == 0)
            out += fmt::format("<0x{:02X}>", c);
        else if (c == '\n')
            out += "\u21B5";
        else if (c == '\t')
            out += "\u21E5";
        else if (c < 0x20 || c == 0x7F)
            out += fmt::format("<0x{:02X}>", c);
        else
            out += rest.substr(0, n);
        rest.remove_prefix(std::max<std::size_t>(1, n));
    }
    return out;
}

}  // namespace keyhole
