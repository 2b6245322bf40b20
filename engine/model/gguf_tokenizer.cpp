// Sources: docs/gguf.md of the ggml project for the keys; the tokenizer.json files of the named models for
// their pre-tokenizers. SentencePiece: Kudo and Richardson 2018 (arXiv:1808.06226).
#include "engine/model/gguf_tokenizer.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/byte_alphabet.h"
#include "engine/model/config_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace keyhole {
namespace {

/// The types of tokens, as the file numbers them.
enum class TokenType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

constexpr std::string_view kGgufBlank = "▁";  // SentencePiece's, U+2581

/// How texts are split before byte BPE.
enum class Split {
    gpt2,         ///< GPT-2's rule alone
    punctuation,  ///< runs of punctuation apart, then GPT-2's rule
    digits,       ///< every digit alone, then GPT-2's rule
    pattern,      ///< a regular expression
    listed        ///< several regular expressions, one after the other
};

// LLaMA 3's pattern; Qwen 2 differs in taking digits one by one.
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloomPattern = R"( ?[^(\s|[.,!?…。，、।۔،])]+)";
// The pre-tokenizer that converters write for a model that they do not know, and that of DeepSeek's coder.
constexpr const char* kDefaultPatterns[] = {
    R"([\p{P}\$\+<=>\^~\|]+)", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))",
    R"(\p{N}+)", R"([0-9][0-9][0-9])"};
constexpr const char* kDeepseekCoderPatterns[] = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                                  R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})"};

struct NamedSplit {
    std::string_view name;
    Split split = Split::gpt2;
    const char* pattern = nullptr;
    std::span<const char* const> patterns = {};
    bool then_threes = false;     ///< Falcon: then numbers apart, in the byte alphabet, three digits each
    bool composes = false;        ///< texts are normalised to NFC
    bool ignores_merges = false;  ///< a word that is a token becomes that token
    bool adds_bos = false;        ///< unless the file says otherwise
};

constexpr NamedSplit llama3_split(std::string_view name) {
    return {.name = name,
            .split = Split::pattern,
            .pattern = kLlama3Pattern,
            .ignores_merges = true,
            .adds_bos = true};
}

const NamedSplit kSplits[] = {
    {"default", Split::listed, nullptr, kDefaultPatterns},
    {"gpt-2"},
    {"phi-2"},
    {.name = "falcon", .split = Split::punctuation, .then_threes = true},
    {"bloom", Split::pattern, kBloomPattern},
    {"gpt3-finnish", Split::pattern, kBloomPattern},
    {"poro-chat", Split::pattern, kBloomPattern},
    {.name = "mpt", .composes = true},
    {.name = "olmo", .composes = true},
    {"smollm", Split::digits},
    {"starcoder", Split::digits},
    {"refact", Split::digits},
    {"codeshell", Split::digits},
    {.name = "command-r", .split = Split::digits, .composes = true},
    llama3_split("llama-bpe"),
    llama3_split("llama3"),
    llama3_split("llama-v3"),
    // Names of other models whose converter found LLaMA 3's rule: as vocabularies of llama.cpp list them.
    llama3_split("falcon3"),
    llama3_split("falcon-h1"),
    llama3_split("pixtral"),
    llama3_split("midm-2.0"),
    llama3_split("lfm2"),
    {"glm4", Split::pattern, kLlama3Pattern},
    {"chatglm-bpe", Split::pattern, kLlama3Pattern},
    {"jina-es"},
    {"jina-de"},
    {"jina-v2-es"},
    {"jina-v2-de"},
    {"gigachat"},
    {"a.x-4.0"},
    {"mellum"},
    {"exaone4"},
    {"jais"},
    {"trillion"},
    {"exaone", Split::digits},
    {"minerva-7b", Split::digits},
    {"megrez", Split::pattern, kQwen2Pattern},
    {"hunyuan", Split::pattern, kQwen2Pattern},
    {"llama4", Split::pattern, kGpt4oPattern},
    {"smaug-bpe", Split::pattern, kLlama3Pattern},
    {"dbrx", Split::pattern, kLlama3Pattern},
    {.name = "qwen2", .split = Split::pattern, .pattern = kQwen2Pattern, .composes = true},
    {.name = "deepseek-r1-qwen", .split = Split::pattern, .pattern = kQwen2Pattern, .composes = true},
    {"stablelm2", Split::pattern, kQwen2Pattern},
    {.name = "tekken",
     .split = Split::pattern,
     .pattern = kTekkenPattern,
     .ignores_merges = true,
     .adds_bos = true},
    {"gpt-4o", Split::pattern, kGpt4oPattern},
    {"deepseek-coder", Split::listed, nullptr, kDeepseekCoderPatterns},
};

/// Reads one tokenizer: holds the file and the parts read so far.
class GgufReader {
  public:
    explicit GgufReader(const GgufFile& file) : file_(file) { parts_.path = file.path(); }
    TokenizerParts read();

  private:
    [[noreturn]] void broken(const std::string& what) const {
        fail(ErrorCode::bad_file, "cannot use {}: {}; convert the model again", file_.path().string(), what);
    }
    [[noreturn]] void unsupported(const std::string& what) const {
        fail(ErrorCode::unsupported, "cannot use {}: {}; choose a model with a BPE or Unigram tokenizer",
             file_.path().string(), what);
    }
    static std::string key(const char* name) { return fmt::format("tokenizer.ggml.{}", name); }
    TokenType type(std::size_t id) const { return types_.empty() ? TokenType::normal : types_[id]; }
    std::optional<int> special_id(const char* name);

    void read_tokens();
    void read_added();
    void read_around(bool adds_bos, bool adds_eos = false);
    void read_named();
    const NamedSplit& split() const;
    void read_byte_level();
    void read_charsmap();
    void read_sentencepiece(bool is_unigram);
    void read_scores(std::unordered_map<std::string, int> ids,
                     const std::unordered_map<std::string, int>& bytes);
    void read_unigram(const std::unordered_map<std::string, int>& bytes);
    std::vector<float> read_token_scores() const;
    /// Returns the merges that SentencePiece would make: any two neighbours that form a token, the one of the
    /// highest score first.
    std::vector<Bpe::Merge> merges_by_score(const std::unordered_map<std::string, int>& ids) const;

    const GgufFile& file_;
    TokenizerParts parts_;
    std::vector<std::string_view> tokens_;
    std::vector<TokenType> types_;
};

void GgufReader::read_tokens() {
    tokens_ = file_.texts(key("tokens"));
    if (tokens_.empty() || tokens_.size() > kMostVocabulary)
        broken(
            fmt::format("{} has {} members, wanted 1 to {}", key("tokens"), tokens_.size(), kMostVocabulary));
    const std::vector<std::int32_t> types = file_.integers(key("token_type"));
    if (!types.empty() && types.size() != tokens_.size())
        broken(fmt::format("{} has {} members and {} has {}", key("token_type"), types.size(), key("tokens"),
                           tokens_.size()));
    for (const std::int32_t one : types) {
        // 0 stands for a type that the converter did not know.
        if (one < 0 || one > 6) broken(fmt::format("{} holds {}, wanted 0 to 6", key("token_type"), one));
        types_.push_back(one == 0 ? TokenType::normal : static_cast<TokenType>(one));
    }
    for (std::size_t id = 0; id < tokens_.size(); ++id)
        parts_.tokens.emplace_back(type(id) == TokenType::unused ? std::string_view() : tokens_[id]);
}

void GgufReader::read_added() {
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
        const bool special = type(id) == TokenType::control || type(id) == TokenType::unknown;
        if (!special && type(id) != TokenType::user_defined) continue;
        AddedToken token;
        token.id = static_cast<int>(id);
        token.content = tokens_[id];
        token.special = special;
        parts_.added.push_back(std::move(token));
    }
}

/// Returns an id; nullopt for an absent one, for -1 and its 32 bits, which stand for none, and for one that
/// no token has.
std::optional<int> GgufReader::special_id(const char* name) {
    const std::string of = key(fmt::format("{}_token_id", name).c_str());
    const double id = file_.number_or(of, -1.0);
    if (id == -1.0 || id == 4294967295.0) return std::nullopt;
    if (id >= 0 && id < static_cast<double>(tokens_.size()))
        return file_.count_or_zero(of, 0, kMostVocabulary);
    std::string line = fmt::format("{} is {}, which is no token: there are {}", of, id, tokens_.size());
    if (std::find(parts_.warnings.begin(), parts_.warnings.end(), line) == parts_.warnings.end())
        parts_.warnings.push_back(std::move(line));
    return std::nullopt;
}

void GgufReader::read_around(bool adds_bos, bool adds_eos) {
    const auto add = [&](const char* name, bool by_default, std::vector<int>& ids) {
        const std::string flag = key(fmt::format("add_{}_token", name).c_str());
        if (!file_.flag_or(flag, by_default)) return;
        const std::string of = key(fmt::format("{}_token_id", name).c_str());
        const auto id = special_id(name);
        if (!id && file_.has(flag) && !file_.has(of))
            broken(fmt::format("{} is true and {}_token_id is absent", flag, name));
        if (!id && file_.has(flag))
            parts_.warnings.push_back(fmt::format("{} is true and {} is no token: none is added", flag, of));
        if (id) ids.push_back(*id);
    };
    parts_.has_post_processor = true;
    add("bos", adds_bos, parts_.before);
    add("eos", adds_eos, parts_.after);
}

void GgufReader::read_named() {
    static constexpr std::pair<const char*, const char*> kNamed[] = {
        {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};
    for (const auto& [id_name, name] : kNamed)
        if (const auto id = special_id(id_name))
            parts_.named.emplace_back(name, std::string(tokens_[to_index(*id)]));
}

const NamedSplit& GgufReader::split() const {
    const std::string architecture = file_.text_or("general.architecture", "");
    std::string name = file_.text_or(key("pre"), "");
    if (name.empty()) {
        // Older files name no pre-tokenizer; models of these architectures had GPT-2's.
        if (architecture != "gpt2" && architecture != "gptneox" && architecture != "mpt")
            unsupported(fmt::format("it does not say how texts are split ({} is absent)", key("pre")));
        name = architecture == "gpt2" ? "gpt-2" : "mpt";
    }
    const auto* found = std::find_if(std::begin(kSplits), std::end(kSplits),
                                     [&](const NamedSplit& one) { return one.name == name; });
    if (found == std::end(kSplits))
        unsupported(fmt::format("its pre-tokenizer {} is not supported", shown_text(name)));
    return *found;
}

void GgufReader::read_byte_level() {
    const NamedSplit& named = split();
    if (named.composes) parts_.normalizer.add_form(Normalizer::Form::nfc);
    if (named.split == Split::punctuation)
        parts_.pre_tokenizer.add_split(Regex(kPunctuation), SplitBehavior::contiguous, false);
    if (named.split == Split::digits) parts_.pre_tokenizer.add_digits(true);
    if (named.pattern != nullptr)
        parts_.pre_tokenizer.add_split(Regex(named.pattern), SplitBehavior::isolated, false);
    for (const char* pattern : named.patterns)
        parts_.pre_tokenizer.add_split(Regex(pattern), SplitBehavior::isolated, false);
    parts_.pre_tokenizer.add_byte_level(file_.flag_or(key("add_space_prefix"), false),
                                        named.split != Split::pattern && named.split != Split::listed);
    if (named.then_threes) {
        parts_.pre_tokenizer.add_byte_alphabet();
        parts_.pre_tokenizer.add_digits(false);
        parts_.pre_tokenizer.add_split(Regex("[0-9][0-9][0-9]"), SplitBehavior::isolated, false);
    }

    std::unordered_map<std::string_view, int> ids;
    std::unordered_map<std::string, int> by_bytes;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
        if (type(id) == TokenType::unused) continue;
        ids.emplace(tokens_[id], static_cast<int>(id));
        if (auto bytes = bytes_from_alphabet(tokens_[id]))
            by_bytes.emplace(std::move(*bytes), static_cast<int>(id));
    }
    std::vector<Bpe::Merge> merges;
    std::string both;
    for (const std::string_view merge : file_.texts(key("merges"))) {
        const std::size_t blank = merge.find(' ', 1);
        if (blank == std::string_view::npos)
            broken(fmt::format("merge {} ({}) has no blank", merges.size(), shown_text(merge)));
        const std::string_view left = merge.substr(0, blank), right = merge.substr(blank + 1);
        both.assign(left).append(right);
        const auto a = ids.find(left), b = ids.find(right), ab = ids.find(both);
        if (a == ids.end() || b == ids.end() || ab == ids.end())
            broken(fmt::format("merge {} ({}) uses a token that the vocabulary lacks", merges.size(),
                               shown_text(merge)));
        merges.push_back({a->second, b->second, ab->second});
    }
    parts_.bpe =
        Bpe({.byte_level = true, .ignore_merges = named.ignores_merges}, std::move(by_bytes), merges);
    parts_.decoder.emplace_back().kind = DecodeStep::Kind::byte_level;
    read_around(named.adds_bos);
}

std::vector<float> GgufReader::read_token_scores() const {
    std::vector<float> scores = file_.numbers(key("scores"));
    if (scores.size() != tokens_.size())
        broken(fmt::format("{} has {} members and {} has {}", key("scores"), scores.size(), key("tokens"),
                           tokens_.size()));
    for (std::size_t id = 0; id < scores.size(); ++id)
        if (std::isnan(scores[id])) broken(fmt::format("the score of token {} is NaN", id));
    return scores;
}

std::vector<Bpe::Merge> GgufReader::merges_by_score(const std::unordered_map<std::string, int>& ids) const {
    constexpr std::size_t kLongest = 1024, kMostWork = std::size_t{1} << 28;
    const std::vector<float> scores = read_token_scores();
    std::vector<std::size_t> order;
    std::size_t work = 0;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
        if (type(id) != TokenType::normal) continue;
        if (tokens_[id].size() > kLongest)
            broken(fmt::format("token {} has {} bytes, at most {} are possible", id, tokens_[id].size(),
                               kLongest));
        work += tokens_[id].size() * tokens_[id].size();
        order.push_back(id);
    }
    if (work > kMostWork) broken("its tokens are too long");
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    std::vector<Bpe::Merge> merges;
    int rank = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::size_t id = order[i];
        if (i > 0 && scores[id] < scores[order[i - 1]]) ++rank;
        const std::string_view token = tokens_[id];
        for (std::size_t at = 1; at < token.size(); ++at) {
            const auto left = ids.find(std::string(token.substr(0, at)));
            if (left == ids.end()) continue;
            const auto right = ids.find(std::string(token.substr(at)));
            if (right == ids.end()) continue;
            const auto merged = ids.find(std::string(token));
            merges.push_back({left->second, right->second, merged->second, rank});
        }
    }
    return merges;
}

void GgufReader::read_scores(std::unordered_map<std::string, int> ids,
                             const std::unordered_map<std::string, int>& bytes) {
    const std::vector<Bpe::Merge> merges = merges_by_score(ids);
    Bpe::Options options{.byte_fallback = !bytes.empty(), .fuse_unk = true};
    if (const auto unk = special_id("unknown")) options.unk = *unk;
    for (const auto& [text, id] : bytes) ids.emplace(text, id);
    parts_.bpe = Bpe(options, std::move(ids), merges);
}

void GgufReader::read_unigram(const std::unordered_map<std::string, int>& bytes) {
    const std::vector<float> scores = read_token_scores();
    std::vector<Unigram::Token> tokens;
    double least = 0;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
        if (type(id) != TokenType::normal) continue;
        tokens.push_back({std::string(tokens_[id]), static_cast<int>(id), scores[id]});
        least = tokens.size() == 1 ? tokens.back().score : std::min(least, tokens.back().score);
    }
    const auto unk = special_id("unknown");
    if (!unk) broken(fmt::format("{} is absent or no token", key("unknown_token_id")));
    std::array<int, 256> of_byte;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const auto found = bytes.find(fmt::format("<0x{:02X}>", byte));
        of_byte[byte] = found == bytes.end() ? Unigram::kNone : found->second;
    }
    parts_.unigram.emplace(Unigram::Options{.unk = *unk,
                                            .byte_fallback = !bytes.empty(),
                                            .sums_in_float = true,
                                            .unk_score = static_cast<float>(least - Unigram::kUnkPenalty)},
                           std::move(tokens), of_byte);
}

void GgufReader::read_charsmap() {
    std::string blob;
    for (const std::int32_t byte : file_.integers(key("precompiled_charsmap"))) {
        // Converters write bytes with or without a sign.
        if (byte < -128 || byte > 255) broken(fmt::format("{} holds {}", key("precompiled_charsmap"), byte));
        blob += static_cast<char>(byte);
    }
    if (blob.empty()) return;
    try {
        parts_.normalizer.add_charsmap({blob, Charsmap::Cut::longest});
    } catch (const Error& error) {
        broken(error.what());
    }
}

void GgufReader::read_sentencepiece(bool is_unigram) {
    read_charsmap();
    const bool is_single = file_.flag_or(key("remove_extra_whitespaces"), false);
    if (is_single) parts_.normalizer.add_single_blanks();
    const bool prefixes = file_.flag_or(key("add_space_prefix"), true);
    if (prefixes) parts_.normalizer.add_prepend(std::string(kGgufBlank));
    parts_.normalizer.add_replace(" ", std::string(kGgufBlank));

    // Merges join ordinary tokens alone; single bytes stand for characters that the vocabulary lacks.
    std::unordered_map<std::string, int> ids, bytes;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
        if (type(id) == TokenType::normal) ids.emplace(tokens_[id], static_cast<int>(id));
        if (type(id) == TokenType::byte) bytes.emplace(tokens_[id], static_cast<int>(id));
    }
    is_unigram ? read_unigram(bytes) : read_scores(std::move(ids), bytes);
    const auto add = [&](DecodeStep::Kind kind, std::string from = {}, std::string to = {}) -> DecodeStep& {
        DecodeStep& step = parts_.decoder.emplace_back();
        step.kind = kind;
        step.from = std::move(from);
        step.to = std::move(to);
        return step;
    };
    add(DecodeStep::Kind::replace, std::string(kGgufBlank), " ");
    add(DecodeStep::Kind::byte_fallback);
    add(DecodeStep::Kind::fuse);
    // Where blanks are single, sentencepiece takes all from the front.
    constexpr int kAll = 1 << 20;
    if (prefixes || is_single) add(DecodeStep::Kind::strip, " ").n_start = is_single ? kAll : 1;
    read_around(!is_unigram, is_unigram);
}

TokenizerParts GgufReader::read() {
    const std::string model = file_.text(key("model"));
    if (model == "bert") unsupported("its tokenizer bert (WordPiece) is not supported");
    if (model != "gpt2" && model != "llama" && model != "t5")
        unsupported(fmt::format("its tokenizer {} is not supported", shown_text(model)));
    read_tokens();
    read_added();
    read_named();
    parts_.chat_template = file_.text_or("tokenizer.chat_template", "");
    if (model == "gpt2") {
        read_byte_level();
    } else {
        read_sentencepiece(model == "t5");
    }
    return std::move(parts_);
}

}  // namespace

TokenizerParts read_gguf_tokenizer(const GgufFile& file) {
    return GgufReader(file).read();
}

}  // namespace keyhole
