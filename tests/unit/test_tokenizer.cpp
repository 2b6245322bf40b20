// Ids against the official tokenizers package (tests/fixtures/make_fixtures.py), on difficult text; arbitrary
// bytes; broken files.
#include "engine/base/index.h"
#include "engine/model/normalize.h"
#include "engine/model/tokenizer.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/source_folder.h"

#include "tests/reference/temp_folder.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

namespace keyhole::test_tokenizer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kFixtures = reference::source_folder() / "tests/fixtures";

Json read_json(const fs::path& path) {
    return Json::parse(read_text_file(path));
}

/// Returns the text up to the first U+FFFD, into which the official package turns bytes that are not UTF-8.
/// Keyhole returns the bytes.
std::string lossless_part(const std::string& text) {
    return text.substr(0, text.find("\xef\xbf\xbd"));
}

void compare_with(const Tokenizer& tokenizer, const Json& texts, const Json& expected) {
    EXPECT_EQ(tokenizer.n_vocab(), expected.at("n_vocab").get<int>());
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto text = texts[i].get<std::string>();
        SCOPED_TRACE("text " + std::to_string(i) + ": " + text);
        const auto ids = expected.at("ids")[i].get<std::vector<int>>();
        auto with_special = expected.at("before").get<std::vector<int>>();
        with_special.insert(with_special.end(), ids.begin(), ids.end());
        for (const Json& id : expected.at("after")) with_special.push_back(id.get<int>());
        EXPECT_EQ(tokenizer.encode(text, false), ids);
        EXPECT_EQ(tokenizer.encode(text, true), with_special);
        for (const bool special : {false, true}) {
            const Json& differs = expected.at("decoded_special")[i];
            const auto decoded =
                (special && !differs.is_null() ? differs : expected.at("decoded")[i]).get<std::string>();
            const std::string ours = tokenizer.decode(with_special, special);
            if (decoded.find("\xef\xbf\xbd") == std::string::npos) {
                EXPECT_EQ(ours, decoded);
            } else {
                EXPECT_TRUE(ours.starts_with(lossless_part(decoded))) << ours << "\n" << decoded;
            }
        }
    }
}

/// A tokenizer.json, removed with the object.
class TokenizerFile {
  public:
    explicit TokenizerFile(const std::string& content)
        : path_(fs::temp_directory_path() / ("keyhole-tokenizer-" + std::to_string(getpid()) + ".json")) {
        write_text_file(path_, content);
    }
    ~TokenizerFile() { fs::remove(path_); }
    TokenizerFile(const TokenizerFile&) = delete;
    TokenizerFile& operator=(const TokenizerFile&) = delete;
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

/// Returns the byte-level fixture with a change.
std::string changed(const std::function<void(Json&)>& change) {
    Json json = read_json(kFixtures / "tokenizers/byte_level.json");
    change(json);
    return json.dump();
}

/// Returns the message that from_file throws: one line that names the file.
std::string refusal(const std::string& content, ErrorCode code) {
    const TokenizerFile file(content);
    try {
        Tokenizer::from_file(file.path());
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), code) << message;
        EXPECT_NE(message.find(file.path().string()), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        return message;
    }
    ADD_FAILURE() << "accepted";
    return {};
}

void expect_says(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

Tokenizer fixture(const std::string& name) {
    return Tokenizer::from_file(kFixtures / "tokenizers" / (name + ".json"));
}

class TokenizerKinds : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerKinds, EqualTheOfficialPackage) {
    const Json cases = read_json(kFixtures / "tokenizers/cases.json");
    compare_with(fixture(GetParam()), cases.at("texts"), cases.at("kinds").at(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, TokenizerKinds,
                         ::testing::Values("byte_level", "flags", "whole_words", "gpt2", "neox", "qwen",
                                           "splits", "clean", "compatible", "nmt_nfkc", "yi", "words",
                                           "metaspace_first", "metaspace_first_split", "metaspace_always",
                                           "metaspace_always_split", "metaspace_never",
                                           "metaspace_never_split", "metaspace_old", "metaspace_older",
                                           "split_removed", "split_merged_with_previous",
                                           "split_merged_with_previous_inverted", "split_merged_with_next",
                                           "split_merged_with_next_inverted", "split_contiguous",
                                           "split_contiguous_inverted", "fallback", "unk_fused", "unk_each",
                                           "unigram_t5", "unigram_whole", "unigram_fallback"),
                         [](const auto& kind) { return kind.param; });

TEST(Tokenizer, RealOnesEqualTheOfficialPackage) {
    const char* folder = std::getenv("KEYHOLE_REAL_TOKENIZERS");
    if (folder == nullptr)
        GTEST_SKIP() << "KEYHOLE_REAL_TOKENIZERS names no folder with gpt2, gpt-neox-20b, mistral-v1";
    const Json cases = read_json(kFixtures / "real_tokenizers.json");
    for (const auto& [name, expected] : cases.at("kinds").items()) {
        SCOPED_TRACE(name);
        compare_with(Tokenizer::from_file(fs::path(folder) / name / "tokenizer.json"), cases.at("texts"),
                     expected);
    }
}

TEST(Tokenizer, VocabAndMergesAreATokenizer) {
    // OPT's folders have no tokenizer.json; BOS comes from tokenizer_config.json.
    const Json cases = read_json(kFixtures / "tokenizers/cases.json");
    compare_with(Tokenizer::from_folder(kFixtures / "tokenizers/opt"), cases.at("texts"),
                 cases.at("kinds").at("opt"));
}

// A folder of single letters; the ids are those of transformers 5.24.
TEST(Tokenizer, ConfigSaysWhatIsAroundVocabAndMerges) {
    Json letters;
    for (int i = 0; i < 26; ++i) letters[std::string(1, static_cast<char>('a' + i))] = i;
    const auto ids = [&](const Json& vocab, const Json& added, const Json& config, const std::string& text) {
        const reference::TempFolder folder("folder");
        write_text_file(folder.path() / "vocab.json", vocab.dump());
        write_text_file(folder.path() / "merges.txt", "#version: 0.2\n");
        write_text_file(folder.path() / "added_tokens.json", added.dump());
        write_text_file(folder.path() / "tokenizer_config.json", config.dump());
        return Tokenizer::from_folder(folder.path()).encode(text);
    };
    const Json added = {{"<x>", 26}, {"<y>", 27}};
    Json config = {{"add_bos_token", true}, {"eos_token", "b"}, {"unk_token", "a"}};
    config["bos_token"] = "<x>";
    EXPECT_EQ(ids(letters, added, config, "xy<y>z"), (std::vector<int>{26, 23, 24, 27, 25}));
    config["bos_token"] = "nowhere";
    EXPECT_EQ(ids(letters, added, config, "xy<y>z"), (std::vector<int>{28, 23, 24, 27, 25}));
    config["bos_token"] = nullptr;
    EXPECT_THROW(ids(letters, added, config, "x"), Error);
    // Ids follow the vocabulary's, in the order of the file's.
    EXPECT_EQ(ids(letters, {{"<x>", 100}, {"<b>", 101}, {"<a>", 102}}, Json::object(), "a<x>b<b>c<a>d"),
              (std::vector<int>{0, 26, 1, 27, 2, 28, 3}));
    // The names that GPT-2's class gives.
    letters["<|endoftext|>"] = 26;
    EXPECT_EQ(ids(letters, Json::object(), {{"add_bos_token", true}, {"unk_token", "a"}}, "xy<|endoftext|>z"),
              (std::vector<int>{26, 23, 24, 26, 25}));
}

// transformers 5 adds around a text what tokenizer.json says, and nothing else.
TEST(Tokenizer, ConfigAddsNothingAroundTokenizerJson) {
    const reference::TempFolder folder("folder");
    const auto read = [&](const Json& post_processor, const std::string& config) {
        write_text_file(folder.path() / "tokenizer.json",
                        changed([&](Json& json) { json["post_processor"] = post_processor; }));
        write_text_file(folder.path() / "tokenizer_config.json", config);
        return Tokenizer::from_folder(folder.path());
    };
    const int a = fixture("byte_level").encode("a", false).at(0);
    const std::string both =
        R"({"add_bos_token":true,"add_eos_token":true,"bos_token":"<|endoftext|>","eos_token":{"content":"a"}})";
    EXPECT_EQ(read(nullptr, both).encode("b").size(), 1u);
    const std::vector<std::string> said = read(nullptr, both).warnings();
    ASSERT_EQ(said.size(), 2u);
    expect_says(said[0], "add_bos_token");
    expect_says(said[1], "add_eos_token");
    EXPECT_TRUE(read(nullptr, R"({"add_bos_token":false,"bos_token":"<|endoftext|>"})").warnings().empty());
    EXPECT_EQ(read({{"type", "ByteLevel"}}, both).encode("a"), (std::vector<int>{a}));
    const Json given = read_json(kFixtures / "tokenizers/byte_level.json").at("post_processor");
    EXPECT_EQ(read(given, both).encode("a"), (std::vector<int>{0, a}));
    for (const char* config : {"[1]", "{", R"({"bos_token":{"content":3}})"}) {
        try {
            read(nullptr, config);
            ADD_FAILURE() << config;
        } catch (const Error& error) {
            expect_says(error.what(), "tokenizer_config.json");
        }
    }
}

TEST(Tokenizer, AFolderWithoutOneSaysWhatToDo) {
    const reference::TempFolder folder("folder");
    const auto refused = [&] {
        try {
            Tokenizer::from_folder(folder.path());
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    expect_says(refused(), "it has no tokenizer.json; name a complete");
    write_text_file(folder.path() / "vocab.json", "{}");
    expect_says(refused(), "it has no tokenizer.json");
    write_text_file(folder.path() / "tokenizer.model", "x");
    expect_says(refused(), "save_pretrained");
    write_text_file(folder.path() / "merges.txt", "#version: 0.2\na b\n");
    expect_says(refused(), "vocab.json");
}

TEST(Tokenizer, CuttingAtBlanksChangesNoIds) {
    // One merge across a word's end, with a letter that the texts lack, disables all cutting at blanks.
    Json json = read_json(kFixtures / "tokenizers/words.json");
    const int n = fixture("words").n_vocab();
    json["model"]["vocab"]["\xe2\x97\x8a"] = n;
    json["model"]["vocab"]["\xe2\x97\x8a\xe2\x96\x81"] = n + 1;
    json["model"]["merges"].push_back(Json::array({"\xe2\x97\x8a", "\xe2\x96\x81"}));
    const TokenizerFile file(json.dump());
    const Tokenizer whole = Tokenizer::from_file(file.path()), cut = fixture("words");
    const Json cases = read_json(kFixtures / "tokenizers/cases.json");
    for (const Json& text : cases.at("texts"))
        EXPECT_EQ(whole.encode(text.get<std::string>()), cut.encode(text.get<std::string>())) << text;
    EXPECT_EQ(whole.encode("\xe2\x97\x8a \xe2\x97\x8a", false).size(), 3u);
    EXPECT_EQ(cut.encode("a\xff \xe4\xbd b"), whole.encode("a\xff \xe4\xbd b"));
}

TEST(Tokenizer, HostileFilesTakeNeitherMemoryNorTime) {
    using enum ErrorCode;
    std::string deep;
    for (int i = 0; i < 100'000; ++i) deep += R"({"type":"Sequence","normalizers":[)";
    expect_says(refusal(R"({"normalizer":)" + deep, bad_file), "too deep");
    // Every step turns one letter into ten.
    const auto grow = [](Json& json, const char* part, const char* list) {
        Json steps = Json::array();
        for (int i = 0; i < 40; ++i)
            steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}});
        json[part] = {{"type", "Sequence"}, {list, steps}};
    };
    const TokenizerFile file(changed([&](Json& json) { grow(json, "normalizer", "normalizers"); }));
    EXPECT_THROW(Tokenizer::from_file(file.path()).encode("banana"), Error);
    const TokenizerFile decoder(changed([&](Json& json) { grow(json, "decoder", "decoders"); }));
    EXPECT_THROW(Tokenizer::from_file(decoder.path()), Error);
    expect_says(refusal(changed([](Json& json) { json["added_tokens"][0]["id"] = 4'000'000; }), bad_file),
                "wanted a whole number from 0 to");
    refusal(changed([](Json& json) {
                json["decoder"] = {{"type", "Strip"}, {"content", ""}, {"start", 2'000'000'000}, {"stop", 0}};
            }),
            bad_file);
}

TEST(Tokenizer, MergesAsTextsAndAsPairsAreTheSame) {
    const TokenizerFile texts(changed([](Json& json) {
        for (Json& merge : json["model"]["merges"]) {
            if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
        }
    }));
    const std::string text = "The code of the garden gate is 4821, they'll say.";
    EXPECT_EQ(Tokenizer::from_file(texts.path()).encode(text), fixture("byte_level").encode(text));
}

TEST(Tokenizer, AnyBytesComeBack) {
    const Tokenizer tokenizer = fixture("byte_level");
    std::string every;
    for (int b = 0; b < 256; ++b) every += static_cast<char>(b);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(every)), every);
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        std::string bytes(random() % 80, '\0');
        for (char& c : bytes) {
            // Many lead and continuation bytes, so that characters break in every way.
            const unsigned kind = random() % 4;
            c = static_cast<char>(kind == 0   ? random() % 256
                                  : kind == 1 ? 0xc0 + random() % 0x40
                                  : kind == 2 ? 0x80 + random() % 0x40
                                              : " ae1'\n"[random() % 6]);
        }
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes) << ::testing::PrintToString(bytes);
    }
}

TEST(Tokenizer, BrokenBytesPassByteFallbackAndNormalisation) {
    const std::string bytes = "a\xff\xe4\xbd e\xcc\x81 \xc3";
    const Tokenizer fallback = fixture("fallback");
    EXPECT_EQ(fallback.decode(fallback.encode(bytes)), bytes);
    const Tokenizer nfc = fixture("flags");
    const std::string composed = "a\xff\xe4\xbd \xc3\xa9 \xc3";
    EXPECT_EQ(nfc.encode(bytes), nfc.encode(composed));
    EXPECT_EQ(nfc.decode(nfc.encode(bytes)), " " + composed);
}

TEST(Tokenizer, LongRunsGoThroughTheHeapAndStaySame) {
    // One run of letters far longer than a word, against the same text cut where no merge crosses.
    const Tokenizer tokenizer = fixture("byte_level");
    std::string letters;
    for (int i = 0; i < 5000; ++i) letters += "theinganerou"[(i * i + i / 7) % 12];
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(letters)), letters);
    std::vector<int> by_lines;
    std::string lines;
    for (int i = 0; i < 200; ++i) {
        lines += "word" + letters.substr(to_index(i), 9) + "\n";
        const auto ids = tokenizer.encode("word" + letters.substr(to_index(i), 9) + "\n", false);
        by_lines.insert(by_lines.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(tokenizer.encode(lines, false), by_lines);
}

// Running text, one long word, one long run of blanks. Merges in quadratic time would take twenty minutes,
// twice the time limit of a test.
TEST(Tokenizer, EncodesMegabytes) {
    const std::string corpus = read_text_file(kFixtures / "tokenizers/cases.json");
    std::string text;
    while (text.size() < 1'000'000) text += corpus.substr(0, 4000);
    for (const std::string& one : {text, std::string(600'000, 'a'), std::string(600'000, ' ')})
        for (const std::string kind : {"byte_level", "flags", "fallback"}) {
            const Tokenizer tokenizer = fixture(kind);
            const std::vector<int> ids = tokenizer.encode(one);
            EXPECT_FALSE(ids.empty()) << kind;
            // Special tokens, which the running text names, decode to nothing.
            if (kind == "byte_level" && one != text) {
                EXPECT_TRUE(tokenizer.decode(ids) == one);
            }
        }
}

TEST(Tokenizer, TokensShowAsText) {
    const Tokenizer tokenizer = fixture("byte_level");
    const auto id_of = [&](const std::string& bytes) {
        const std::vector<int> ids = tokenizer.encode(bytes, false);
        EXPECT_EQ(ids.size(), 1u) << bytes;
        EXPECT_EQ(tokenizer.token_bytes(ids.at(0)), bytes);
        return ids.at(0);
    };
    EXPECT_EQ(tokenizer.display(id_of("\n")), "↵");
    EXPECT_EQ(tokenizer.display(id_of("\t")), "⇥");
    EXPECT_EQ(tokenizer.display(id_of("x")), "x");
    EXPECT_EQ(tokenizer.display(id_of("\xe4")), "<0xE4>");
    EXPECT_EQ(tokenizer.display(id_of(std::string(1, '\0'))), "<0x00>");
    EXPECT_EQ(tokenizer.display(0), "<|endoftext|>");
    EXPECT_TRUE(tokenizer.is_special(0));
    EXPECT_FALSE(tokenizer.is_special(id_of("x")));
    for (const int beyond : {-1, tokenizer.n_vocab(), 1 << 30}) {
        EXPECT_EQ(tokenizer.token_bytes(beyond), "");
        EXPECT_FALSE(tokenizer.is_special(beyond));
    }
}

TEST(Tokenizer, BrokenFilesAreRefused) {
    using enum ErrorCode;
    refusal("{ garbage", bad_file);
    refusal("", bad_file);
    refusal("[1, 2]", bad_file);
    refusal("{}", bad_file);
    refusal(changed([](Json& json) { json["model"]["vocab"] = 3; }), bad_file);
    refusal(changed([](Json& json) { json["model"]["vocab"]["x"] = -4; }), bad_file);
    refusal(changed([](Json& json) { json["model"]["vocab"]["x"] = 1'000'000'000'000; }), bad_file);
    refusal(changed([](Json& json) { json["model"]["vocab"]["x"] = "7"; }), bad_file);
    expect_says(refusal(changed([](Json& json) { json["model"]["merges"].push_back("qq zz"); }), bad_file),
                "qq zz");
    refusal(changed([](Json& json) { json["model"]["merges"].push_back(3); }), bad_file);
    refusal(changed([](Json& json) { json["model"]["merges"].push_back("one"); }), bad_file);
    refusal(changed([](Json& json) { json["added_tokens"][0].erase("content"); }), bad_file);
    refusal(changed([](Json& json) { json["post_processor"]["special_tokens"] = Json::object(); }), bad_file);
    refusal(changed([](Json& json) {
                json["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] = {99999};
            }),
            bad_file);
    refusal(changed([](Json& json) { json["model"]["unk_token"] = "<nowhere>"; }), bad_file);
    EXPECT_THROW(Tokenizer::from_file("/nowhere/tokenizer.json"), Error);
}

std::string changed_unigram(const std::function<void(Json&)>& change) {
    Json json = read_json(kFixtures / "tokenizers/unigram_t5.json");
    change(json);
    return json.dump();
}

TEST(Tokenizer, BrokenUnigramModelsAreRefused) {
    using enum ErrorCode;
    const auto refuses = [](const std::string& part, ErrorCode code,
                            const std::function<void(Json&)>& change) {
        expect_says(refusal(changed_unigram(change), code), part);
    };
    refuses("model.vocab is not a list", bad_file, [](Json& json) { json["model"]["vocab"] = {{"a", 1}}; });
    refuses("token 3 of model.vocab", bad_file, [](Json& json) { json["model"]["vocab"][3] = "a"; });
    refuses("token 3 of model.vocab", bad_file, [](Json& json) { json["model"]["vocab"][3][1] = "a"; });
    refuses("the unknown token", bad_file, [](Json& json) { json["model"]["unk_id"] = 100'000; });
    refuses("unk_id is no token", bad_file, [](Json& json) { json["model"]["unk_id"] = 5000; });
    refuses("without unk_id", unsupported, [](Json& json) { json["model"]["unk_id"] = nullptr; });
    const auto map = [](Json& json) -> Json& { return json["normalizer"]["precompiled_charsmap"]; };
    refuses("no base64", bad_file, [&](Json& json) { map(json) = "a*cd"; });
    refuses("precompiled_charsmap", bad_file, [&](Json& json) { map(json) = "AQAAAAAA"; });
    refuses("precompiled_charsmap", bad_file, [&](Json& json) { map(json) = "/////wAA"; });
}

TEST(Tokenizer, UnigramTakesTheBestWayAndOneUnkForNeighbours) {
    Json vocab = Json::array();
    for (const auto& [text, score] :
         {std::pair("?", 0.0), {"a", -1.0}, {"b", -1.0}, {"ab", -1.5}, {"ba", -1.25}, {"aa", -2.0}})
        vocab.push_back(Json::array({text, score}));
    const Json model = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
    const TokenizerFile file(Json{{"model", model}, {"decoder", {{"type", "Fuse"}}}}.dump());
    const Tokenizer tokenizer = Tokenizer::from_file(file.path());
    const auto ids = [&](const char* text) { return tokenizer.encode(text, false); };
    EXPECT_EQ(ids("ab"), std::vector<int>{3});         // -1.5, not -2
    EXPECT_EQ(ids("aba"), (std::vector<int>{1, 4}));   // -2.25, not -2.5
    EXPECT_EQ(ids("aa"), std::vector<int>{5});         // -2 both ways: the longer first offer stays
    EXPECT_EQ(ids("xyéa"), (std::vector<int>{0, 1}));  // one unk
    EXPECT_EQ(ids("x?y"), std::vector<int>{0});        // its own text joins them
    EXPECT_EQ(ids("\xff"
                  "a\xff"),
              (std::vector<int>{0, 1, 0}));
    EXPECT_EQ(ids(""), std::vector<int>{});
}

std::string utf8_of(std::uint32_t c) {
    const auto byte = [](std::uint32_t bits) { return static_cast<char>(bits); };
    if (c < 0x80) return {byte(c)};
    if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 63))};
    return {byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
}

// Each character below U+10000, as the package's Nmt changes it.
TEST(Tokenizer, NmtRemovesControlsAndMakesBlanks) {
    Normalizer nmt;
    nmt.add_nmt();
    std::vector<std::uint32_t> removed, blank;
    for (std::uint32_t c = 1; c < 0x10000; ++c) {
        if (c >= 0xd800 && c < 0xe000) continue;
        const std::string text = utf8_of(c), now = nmt.apply("a" + text + "b");
        if (now == "ab")
            removed.push_back(c);
        else if (now == "a b" && c != ' ')
            blank.push_back(c);
        else
            ASSERT_EQ(now, "a" + text + "b") << c;
    }
    EXPECT_EQ(removed,
              (std::vector<std::uint32_t>{1,  2,  3,  4,  5,  6,  7,  8,  11, 14, 15, 16, 17,  18,  19,
                                          20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 127, 143, 159}));
    EXPECT_EQ(blank, (std::vector<std::uint32_t>{0x9, 0xa, 0xc, 0xd, 0x1680, 0x200b, 0x200c, 0x200d, 0x200e,
                                                 0x200f, 0x2028, 0x2029, 0x2581, 0xfeff, 0xfffd}));
    EXPECT_EQ(nmt.apply("\x80\xff"), "\x80\xff") << "bytes that are not UTF-8 stay";
}

TEST(Tokenizer, WhatIsNotSupportedIsRefusedByName) {
    const auto refuses = [](const std::string& name, const std::function<void(Json&)>& change) {
        expect_says(refusal(changed(change), ErrorCode::unsupported), name);
    };
    refuses("WordPiece", [](Json& json) { json["model"]["type"] = "WordPiece"; });
    refuses("dropout", [](Json& json) { json["model"]["dropout"] = 0.1; });
    refuses("end_of_word_suffix", [](Json& json) { json["model"]["end_of_word_suffix"] = "</w>"; });
    refuses("BertNormalizer", [](Json& json) { json["normalizer"] = {{"type", "BertNormalizer"}}; });
    refuses("Unidecode", [](Json& json) {
        json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Unidecode"}}}}};
    });
    refuses("Whitespace", [](Json& json) { json["pre_tokenizer"] = {{"type", "Whitespace"}}; });
    refuses("Metaspace with prepend_scheme sometimes", [](Json& json) {
        json["pre_tokenizer"] = {
            {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}};
    });
    refuses("Unigram with ByteLevel", [](Json& json) { json["model"]["type"] = "Unigram"; });
    refuses("&&", [](Json& json) {
        json["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", "[a-z&&[^b]]"}}}, {"behavior", "Isolated"}};
    });
    refuses("WordPiece", [](Json& json) { json["decoder"] = {{"type", "WordPiece"}}; });
    refuses("RobertaProcessing", [](Json& json) {
        json["post_processor"] = {{"type", "RobertaProcessing"}};
    });
    refuses("(", [](Json& json) {
        json["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}, {"invert", false}};
    });
}

}  // namespace
}  // namespace keyhole::test_tokenizer
