#include "engine/model/tokenizer_file.h"

#include "engine/base/base64.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/model/byte_alphabet.h"
#include "engine/model/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace keyhole {
namespace {

using Json = nlohmann::json;

constexpr JsonBounds kTokenizerBounds{std::size_t{64} << 20, 4'000'000};
/// The largest number of ids around a text.
constexpr std::size_t kMostAround = 1000;

void keep_token(TokenizerParts& parts, int token, const std::string& content) {
    const auto i = to_index(token);
    if (i >= parts.tokens.size()) parts.tokens.resize(i + 1);
    parts.tokens[i] = content;
}

/// Reads one tokenizer: holds the parts read so far.
class TokenizerReader : private TokenizerJson {
  public:
    using TokenizerJson::TokenizerJson;
    TokenizerParts read(const Json& json);

  private:
    PrependScheme prepend_scheme(const Json& metaspace) const;

    Charsmap charsmap_of(std::string_view blob) const;
    void read_normalizer(const Json& json);
    void read_normalizer_step(const Json& step);
    void read_pre_tokenizer(const Json& json);
    SplitBehavior split_behavior(const Json& step, const std::string& of) const;
    void read_split(const Json& step);
    void read_model(const Json& json);
    void read_unigram(const Json& json);
    std::vector<Bpe::Merge> read_merges(const Json& json,
                                        const std::unordered_map<std::string, int>& vocab) const;
    void read_added(const Json& json);
    void read_post_processor(const Json& json);
    void read_template(const Json& json);
    void read_decoder(const Json& json);

    TokenizerParts parts_;
    bool byte_level_ = false;
};

void TokenizerReader::read_normalizer_step(const Json& step) {
    static const std::unordered_map<std::string, Normalizer::Form> forms = {
        {"NFC", Normalizer::Form::nfc},
        {"NFD", Normalizer::Form::nfd},
        {"NFKC", Normalizer::Form::nfkc},
        {"NFKD", Normalizer::Form::nfkd},
    };
    const std::string type = text(step, "type");
    if (const auto form = forms.find(type); form != forms.end()) {
        parts_.normalizer.add_form(form->second);
    } else if (type == "Prepend") {
        parts_.normalizer.add_prepend(text(step, "prepend"));
    } else if (type == "Replace") {
        if (member(member(step, "pattern"), "Regex").is_string()) {
            parts_.normalizer.add_replace(regex(step), text(step, "content"));
        } else {
            parts_.normalizer.add_replace(literal(step, "normalizer Replace"), text(step, "content"));
        }
    } else if (type == "Strip") {
        parts_.normalizer.add_strip(flag(step, "strip_left", true), flag(step, "strip_right", true));
    } else if (type == "Lowercase") {
        parts_.normalizer.add_lowercase();
    } else if (type == "Precompiled") {
        const Json& map = member(step, "precompiled_charsmap");
        const auto blob = bytes_of_base64(map.is_null() ? std::string() : text(step, "precompiled_charsmap"));
        if (!blob) broken("precompiled_charsmap is no base64");
        parts_.normalizer.add_charsmap(charsmap_of(*blob));
    } else if (type == "Nmt") {
        parts_.normalizer.add_nmt();
    } else if (type == "StripAccents") {
        parts_.normalizer.add_strip_accents();
    } else {
        unsupported("normalizer " + shown_text(type));
    }
}

Charsmap TokenizerReader::charsmap_of(std::string_view blob) const {
    try {
        return {blob, Charsmap::Cut::graphemes};
    } catch (const Error& error) {
        broken(error.what());
    }
}

void TokenizerReader::read_normalizer(const Json& json) {
    for (const Json* step : steps(json, "normalizers")) read_normalizer_step(*step);
}

SplitBehavior TokenizerReader::split_behavior(const Json& step, const std::string& of) const {
    static const std::unordered_map<std::string, SplitBehavior> behaviors = {
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"Contiguous", SplitBehavior::contiguous},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
    };
    const auto behavior = behaviors.find(text(step, "behavior"));
    if (behavior == behaviors.end())
        unsupported("pre_tokenizer " + of + " with behavior " + shown_text(text(step, "behavior")));
    return behavior->second;
}

void TokenizerReader::read_split(const Json& step) {
    parts_.pre_tokenizer.add_split(regex(step), split_behavior(step, "Split"), flag(step, "invert", false));
}

PrependScheme TokenizerReader::prepend_scheme(const Json& metaspace) const {
    // Older files have add_prefix_space instead.
    if (member(metaspace, "prepend_scheme").is_null())
        return flag(metaspace, "add_prefix_space", true) ? PrependScheme::always : PrependScheme::never;
    const std::string scheme = text(metaspace, "prepend_scheme");
    if (scheme == "always") return PrependScheme::always;
    if (scheme == "first") return PrependScheme::first;
    if (scheme != "never") unsupported("Metaspace with prepend_scheme " + shown_text(scheme));
    return PrependScheme::never;
}

void TokenizerReader::read_pre_tokenizer(const Json& json) {
    bool sees_alphabet = false;
    for (const Json* one : steps(json, "pretokenizers")) {
        const Json& step = *one;
        const std::string type = text(step, "type");
        // After ByteLevel the text is in the byte alphabet, which later steps see (Falcon).
        if (byte_level_ && !std::exchange(sees_alphabet, true)) parts_.pre_tokenizer.add_byte_alphabet();
        if (byte_level_ && type != "Digits" && type != "Split" && type != "Punctuation")
            unsupported("pre_tokenizer " + shown_text(type) + " behind ByteLevel");
        if (type == "ByteLevel") {
            parts_.pre_tokenizer.add_byte_level(flag(step, "add_prefix_space", true),
                                                flag(step, "use_regex", true));
            byte_level_ = true;
        } else if (type == "Digits") {
            parts_.pre_tokenizer.add_digits(flag(step, "individual_digits", false));
        } else if (type == "Punctuation") {
            parts_.pre_tokenizer.add_split(
                Regex(kPunctuation),
                member(step, "behavior").is_null() ? SplitBehavior::isolated : split_behavior(step, type),
                false);
        } else if (type == "WhitespaceSplit") {
            parts_.pre_tokenizer.add_split(Regex(R"(\s+)"), SplitBehavior::removed, false);
        } else if (type == "Split") {
            read_split(step);
        } else if (type == "Metaspace") {
            parts_.pre_tokenizer.add_metaspace(one_character(step, "replacement"), prepend_scheme(step),
                                               flag(step, "split", true));
        } else {
            unsupported("pre_tokenizer " + shown_text(type));
        }
    }
}

std::vector<Bpe::Merge> TokenizerReader::read_merges(
    const Json& json, const std::unordered_map<std::string, int>& vocab) const {
    if (!json.is_array()) broken("model.merges is not a list");
    std::vector<Bpe::Merge> merges;
    merges.reserve(json.size());
    for (const Json& merge : json) {
        std::string left, right;
        if (merge.is_string()) {
            const auto both = merge.get<std::string>();
            const std::size_t blank = both.find(' ');
            if (blank == std::string::npos) broken(fmt::format("merge {} has no blank", merges.size()));
            left = both.substr(0, blank);
            right = both.substr(blank + 1);
        } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            left = merge[0].get<std::string>();
            right = merge[1].get<std::string>();
        } else {
            broken(fmt::format("merge {} is neither a text nor a pair of texts", merges.size()));
        }
        const auto a = vocab.find(left), b = vocab.find(right), ab = vocab.find(left + right);
        if (a == vocab.end() || b == vocab.end() || ab == vocab.end()) {
            broken(fmt::format("merge {} ({} {}) uses a token that the vocabulary lacks", merges.size(),
                               shown_text(left), shown_text(right)));
        }
        merges.push_back({a->second, b->second, ab->second});
    }
    return merges;
}

void TokenizerReader::read_model(const Json& json) {
    if (!json.is_object()) broken("it has no model");
    // The oldest files have no type.
    const std::string type = member(json, "type").is_null() ? "BPE" : text(json, "type");
    if (type == "Unigram") return read_unigram(json);
    if (type != "BPE") unsupported("model " + shown_text(type));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        const Json& value = member(json, key);
        if (!value.is_null() && value != "") unsupported(std::string("model.") + key);
    }
    const Json& dropout = member(json, "dropout");
    if (!dropout.is_null() && dropout != 0.0) unsupported("model.dropout");

    const Json& entries = member(json, "vocab");
    if (!entries.is_object() || entries.empty()) broken("model.vocab is not a table of tokens");
    std::unordered_map<std::string, int> vocab, by_bytes;
    for (const auto& [content, number] : entries.items()) {
        const int token = id(number, content);
        vocab.emplace(content, token);
        keep_token(parts_, token, content);
        if (!byte_level_) continue;
        if (auto bytes = bytes_from_alphabet(content)) by_bytes.emplace(std::move(*bytes), token);
    }
    parts_.ids = vocab;
    parts_.n_model_tokens = vocab.size();
    Bpe::Options options;
    options.byte_level = byte_level_;
    options.byte_fallback = flag(json, "byte_fallback", false);
    options.ignore_merges = flag(json, "ignore_merges", false);
    options.fuse_unk = flag(json, "fuse_unk", false);
    if (options.byte_fallback && byte_level_) unsupported("model.byte_fallback with ByteLevel");
    if (!member(json, "unk_token").is_null()) {
        const auto unk = vocab.find(text(json, "unk_token"));
        if (unk == vocab.end()) broken("unk_token is not in the vocabulary");
        options.unk = unk->second;
    }
    set_file(places().merges);
    const std::vector<Bpe::Merge> merges = read_merges(member(json, "merges"), vocab);
    set_file(places().vocabulary);
    parts_.bpe = Bpe(options, byte_level_ ? std::move(by_bytes) : std::move(vocab), merges);
}

void TokenizerReader::read_unigram(const Json& json) {
    if (byte_level_) unsupported("model Unigram with ByteLevel");
    const Json& entries = member(json, "vocab");
    if (!entries.is_array() || entries.empty()) broken("model.vocab is not a list of tokens");
    std::vector<Unigram::Token> tokens;
    Unigram::Options options{.byte_fallback = flag(json, "byte_fallback", false)};
    double least = 0;
    for (const Json& entry : entries) {
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
            broken(fmt::format("token {} of model.vocab is no pair of a text and a score", tokens.size()));
        const int token = static_cast<int>(tokens.size());
        tokens.push_back({entry[0].get<std::string>(), token, entry[1].get<double>()});
        keep_token(parts_, token, tokens.back().text);
        parts_.ids[tokens.back().text] = token;
        least = tokens.size() == 1 ? tokens.back().score : std::min(least, tokens.back().score);
    }
    parts_.n_model_tokens = tokens.size();
    const Json& unk = member(json, "unk_id");
    if (unk.is_null()) unsupported("model Unigram without unk_id");
    options.unk = id(unk, "the unknown token");
    if (to_index(options.unk) >= tokens.size()) broken("model.unk_id is no token");
    options.unk_score = least - Unigram::kUnkPenalty;
    std::array<int, 256> bytes;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const auto found = parts_.ids.find(fmt::format("<0x{:02X}>", byte));
        bytes[byte] = found == parts_.ids.end() ? Unigram::kNone : found->second;
    }
    parts_.unigram.emplace(options, std::move(tokens), bytes);
}

void TokenizerReader::read_added(const Json& json) {
    if (json.is_null()) return;
    if (!json.is_array()) broken("added_tokens is not a list");
    set_file(places().added);
    int n_moved = 0;
    for (const Json& entry : json) {
        AddedToken token;
        token.content = text(entry, "content");
        if (token.content.size() > kLongestAddedToken)
            broken(fmt::format("the added token {} has {} bytes, at most {} are read",
                               shown_text(token.content), token.content.size(), kLongestAddedToken));
        token.id = id(member(entry, "id"), token.content);
        token.special = flag(entry, "special", false);
        token.normalized = flag(entry, "normalized", !token.special);
        token.single_word = flag(entry, "single_word", false);
        token.lstrip = flag(entry, "lstrip", false);
        token.rstrip = flag(entry, "rstrip", false);
        const int given = token.id;
        const std::string content = token.content;
        if (const int found = add_token(parts_, std::move(token)); found != given && n_moved++ == 0)
            parts_.warnings.push_back(
                fmt::format("{} gives the added token {} the id {}; it has {}, as in the tokenizers package",
                            places().added.filename().string(), shown_text(content), given, found));
    }
    if (n_moved > 1) parts_.warnings.back() += fmt::format(" ({} tokens in all)", n_moved);
    set_file(places().vocabulary);
}

void TokenizerReader::read_template(const Json& json) {
    const Json& single = member(json, "single");
    if (!single.is_array()) broken("post_processor.single is not a list");
    std::vector<int> before, after;
    bool text_seen = false;
    for (const Json& item : single) {
        if (const Json& sequence = member(item, "Sequence"); !sequence.is_null()) {
            if (text(sequence, "id") != "A" || text_seen)
                unsupported("a post_processor that repeats the text");
            text_seen = true;
            continue;
        }
        const std::string name = text(member(item, "SpecialToken"), "id");
        const Json& ids = member(member(member(json, "special_tokens"), name.c_str()), "ids");
        if (!ids.is_array()) broken("the post_processor's special token " + shown_text(name) + " has no ids");
        for (const Json& one : ids) {
            (text_seen ? after : before).push_back(id(one, name));
            // A list may repeat one special token that stands for many ids.
            if (before.size() + after.size() > kMostAround)
                broken(fmt::format("the post_processor adds more than {} ids", kMostAround));
        }
    }
    if (!text_seen) unsupported("a post_processor without the text");
    parts_.before.insert(parts_.before.begin(), before.begin(), before.end());
    parts_.after.insert(parts_.after.end(), after.begin(), after.end());
}

void TokenizerReader::read_post_processor(const Json& json) {
    parts_.has_post_processor = !json.is_null();
    for (const Json* step : steps(json, "processors")) {
        const std::string type = text(*step, "type");
        if (type == "TemplateProcessing") {
            read_template(*step);
        } else if (type != "ByteLevel") {  // ByteLevel only changes offsets
            unsupported("post_processor " + shown_text(type));
        }
    }
    for (const auto* ids : {&parts_.before, &parts_.after}) {
        for (const int token : *ids) {
            if (to_index(token) >= parts_.tokens.size()) {
                broken(fmt::format("the post_processor adds id {}, which is no token", token));
            }
        }
    }
}

void TokenizerReader::read_decoder(const Json& json) {
    if (json.is_null()) unsupported("a tokenizer without a decoder");
    for (const Json* one : steps(json, "decoders")) {
        const Json& step = *one;
        const std::string type = text(step, "type");
        DecodeStep& out = parts_.decoder.emplace_back();
        if (type == "ByteLevel") {
            out.kind = DecodeStep::Kind::byte_level;
        } else if (type == "ByteFallback") {
            out.kind = DecodeStep::Kind::byte_fallback;
        } else if (type == "Fuse") {
            out.kind = DecodeStep::Kind::fuse;
        } else if (type == "Replace") {
            out.kind = DecodeStep::Kind::replace;
            out.from = literal(step, "decoder Replace");
            out.to = text(step, "content");
        } else if (type == "Strip") {
            out.kind = DecodeStep::Kind::strip;
            out.from = one_character(step, "content");
            const Json &start = member(step, "start"), &stop = member(step, "stop");
            if (!start.is_number_unsigned() || !stop.is_number_unsigned())
                broken("decoder Strip lacks start or stop");
            out.n_start = static_cast<int>(std::min<std::uint64_t>(start.get<std::uint64_t>(), kMostIds));
            out.n_end = static_cast<int>(std::min<std::uint64_t>(stop.get<std::uint64_t>(), kMostIds));
        } else if (type == "Metaspace") {
            out.kind = DecodeStep::Kind::metaspace;
            out.from = one_character(step, "replacement");
            out.to = " ";
            out.drops_at_begin = prepend_scheme(step) != PrependScheme::never;
        } else {
            unsupported("decoder " + shown_text(type));
        }
    }
}

TokenizerParts TokenizerReader::read(const Json& json) {
    parts_.path = places().vocabulary;
    // Some files omit ids; one that omits most of them is broken.
    const std::size_t n_tokens =
        member(member(json, "model"), "vocab").size() + member(json, "added_tokens").size();
    limit_ids(std::min<std::uint64_t>(kMostIds, 4 * n_tokens + (1 << 16)));
    read_normalizer(member(json, "normalizer"));
    read_pre_tokenizer(member(json, "pre_tokenizer"));
    read_model(member(json, "model"));
    read_added(member(json, "added_tokens"));
    read_post_processor(member(json, "post_processor"));
    read_decoder(member(json, "decoder"));
    return std::move(parts_);
}

}  // namespace

int add_token(TokenizerParts& parts, AddedToken token) {
    const auto known = parts.ids.find(token.content);
    if (known != parts.ids.end()) {
        token.id = known->second;
    } else {
        const auto n = static_cast<int>(parts.n_model_tokens);
        token.id = parts.last_added >= n ? parts.last_added + 1 : n;
        parts.ids.emplace(token.content, token.id);
    }
    const int id = token.id;
    parts.last_added = std::max(parts.last_added, id);
    keep_token(parts, id, token.content);
    const auto [at, is_new] = parts.added_at.try_emplace(token.content, parts.added.size());
    if (is_new)
        parts.added.push_back(std::move(token));
    else
        parts.added[at->second] = std::move(token);
    return id;
}

TokenizerParts read_tokenizer_object(const Json& object, const TokenizerPlaces& places) {
    return TokenizerReader(places).read(object);
}

TokenizerParts read_tokenizer_file(const std::filesystem::path& path) {
    return read_tokenizer_object(read_json_object(path, kTokenizerBounds), {path, path, path});
}

}  // namespace keyhole
