// Malicious model folders. Each is refused with one line that names file and place, in bounded memory, and
// without work that grows with the square of the file size.
#include "engine/base/index.h"
#include "engine/model/model.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/model/added_tokens.h"
#include "engine/model/convert.h"
#include "engine/model/weight_files.h"
#include "tests/reference/session_run.h"
#include "tests/reference/small_memory.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace keyhole::test_hostile_models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A small valid folder for the tests to break.
class HostileModel : public ::testing::Test {
  protected:
    fs::path file(const std::string& name) const { return folder_ / name; }
    void change(const std::string& name, const std::function<void(Json&)>& how) const {
        Json json = Json::parse(read_text_file(file(name)));
        how(json);
        write_text_file(file(name), json.dump());
    }
    void link(const std::string& name, const fs::path& to) const {
        fs::remove(file(name));
        fs::create_symlink(to, file(name));
    }
    /// Replaces tokenizer.json by vocab.json and merges.txt.
    void make_plain(const Json& vocab, const std::string& merges) const {
        fs::remove(file("tokenizer.json"));
        write_text_file(file("vocab.json"), vocab.dump());
        write_text_file(file("merges.txt"), merges);
    }
    /// Letters a to z as ids 0 to 25.
    static Json letters() {
        Json vocab;
        for (int i = 0; i < 26; ++i) vocab[std::string(1, static_cast<char>('a' + i))] = i;
        return vocab;
    }

    static std::unique_ptr<Backend> cpu(const std::shared_ptr<const Model>& model) {
        std::string notice;
        return make_backend(model, {BackendChoice::cpu, 2, 0}, &notice);
    }
    /// Returns the one-line refusal of the folder, within 512 MiB of memory.
    std::string refusal() const { return refusal_of(folder_); }
    static std::string refusal_of(const fs::path& folder) {
        const std::string said = reference::in_small_memory(std::size_t{512} << 20, [&] {
            load_model(folder);
            return std::string("accepted");
        });
        EXPECT_TRUE(said.starts_with("Error: ")) << said;
        EXPECT_EQ(said, printable_text(said));
        EXPECT_LT(said.size(), 2000u);
        return said;
    }
    void expect_refused(std::initializer_list<std::string> parts) const {
        const std::string said = refusal();
        for (const std::string& part : parts)
            EXPECT_NE(said.find(part), std::string::npos) << said << "\n" << part;
    }

    const reference::TinyModel tiny_{reference::TinyShape{}};
    const fs::path& folder_ = tiny_.folder();
};

TEST_F(HostileModel, CountsOfAConfigAreBounded) {
    const Json config = Json::parse(read_text_file(file("config.json")));
    const auto expect = [&](const char* key, std::uint64_t value, const char* most) {
        write_text_file(file("config.json"), config.dump());
        change("config.json", [&](Json& json) { json[key] = value; });
        expect_refused({"config.json", key, std::to_string(value), std::string("from 1 to ") + most});
    };
    expect("vocab_size", 1'000'000'000, "4194304");
    expect("intermediate_size", 1u << 30, "4194304");
    expect("hidden_size", 1u << 20, "262144");
    expect("num_attention_heads", 1u << 20, "1024");
    expect("num_hidden_layers", 1u << 20, "1024");
    expect("num_hidden_layers", 1u << 24, "1024");
}

TEST_F(HostileModel, NothingIsBuiltBeforeTheWeightsAreThere) {
    // The largest number of layers and heads needs a table of a million heads. The loader must not build it
    // when the weights are missing.
    change("config.json", [](Json& json) {
        json["num_hidden_layers"] = json["num_key_value_layers"] = 1024;
        json["num_attention_heads"] = json["num_key_value_heads"] = 1024;
        json["hidden_size"] = 2048;
    });
    const std::string said = reference::in_small_memory(std::size_t{16} << 20, [&] {
        load_model(folder_);
        return std::string("accepted");
    });
    EXPECT_NE(said.find("embed_tokens"), std::string::npos) << said;
}

TEST_F(HostileModel, LinksThatLeadNowhereAreNamed) {
    link("config.json", "config.json");
    expect_refused({"config.json", "symbolic links", "check the path"});
    link("config.json", "elsewhere.json");
    expect_refused({"config.json", "it is a link to elsewhere.json, which is not there"});
    const fs::path loop = folder_ / "loop";
    fs::create_symlink("loop", loop);
    EXPECT_NE(refusal_of(loop).find("symbolic links"), std::string::npos);
    EXPECT_NE(refusal_of(folder_ / std::string(300, 'n')).find("File name too long"), std::string::npos);
}

TEST_F(HostileModel, DevicesAndPipesAreRefused) {
    for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}) {
        const std::string before = fs::exists(file(name)) ? read_text_file(file(name)) : "{}";
        link(name, "/dev/zero");
        expect_refused({name, "it is a device"});
        fs::remove(file(name));
        ASSERT_EQ(::mkfifo(file(name).c_str(), 0600), 0);
        expect_refused({name, "it is a pipe"});
        fs::remove(file(name));
        write_text_file(file(name), before);
    }
    EXPECT_NO_THROW(load_model(folder_));
}

TEST_F(HostileModel, FilesThatAreTooLargeAreNotRead) {
    const auto grow = [&](const char* name, std::uintmax_t bytes) {
        if (!fs::exists(file(name))) write_text_file(file(name), "{}");
        fs::resize_file(file(name), bytes);  // takes no disk space
        expect_refused({name, "MiB"});
    };
    grow("tokenizer.json", 65u << 20);
    grow("tokenizer_config.json", 5u << 20);
    fs::rename(file("model.safetensors"), file("other"));
    grow("model.safetensors.index.json", 33u << 20);
    grow("config.json", 5u << 20);
}

TEST_F(HostileModel, JsonOfMillionsOfValuesIsNotParsed) {
    std::string lists = "{\"x\":[";
    for (int i = 0; i < 300'000; ++i) lists += "[],";
    write_text_file(file("config.json"), lists + "0]}");
    expect_refused({"config.json", "holds 600003 values, at most 250000"});
}

TEST_F(HostileModel, JsonThatIsNoneHasALineAndAColumn) {
    write_text_file(file("config.json"), "{\n  \"hidden_size\": 32,\n  \"x\": tru\n}");
    expect_refused({"config.json", "it is not JSON at line 3, column "});
    write_text_file(file("config.json"), "{\"x\": 1e999}");
    expect_refused({"config.json", "a number that is too large"});
    write_text_file(file("config.json"), "[]");
    expect_refused({"config.json", "it is not a JSON object"});
}

TEST_F(HostileModel, ATextWhereAnObjectBelongsIsRefused) {
    change("config.json", [](Json& json) { json["rope_scaling"] = "linear"; });
    expect_refused({"config.json", "rope_scaling is \"linear\", wanted an object"});
    change("config.json", [](Json& json) { json["rope_parameters"] = {{"rope_type", "default"}}; });
    expect_refused({"rope_scaling is \"linear\", wanted an object"});
    change("config.json", [](Json& json) { json["rope_scaling"] = Json::array({"type", "linear"}); });
    expect_refused({"rope_scaling is a list, wanted an object"});
}

TEST_F(HostileModel, NumbersThatMakeInfinitiesAreRefused) {
    change("config.json", [](Json& json) { json["rope_theta"] = 1e-320; });
    expect_refused({"config.json", "no finite angles"});
    change("config.json", [](Json& json) {
        json["rope_theta"] = 10000;
        json["rms_norm_eps"] = 1e300;
    });
    expect_refused({"config.json", "rms_norm_eps", "wanted a positive number"});
}

TEST_F(HostileModel, AnArchitectureThatIsNotNamedIsSaidSo) {
    change("config.json", [](Json& json) {
        json.erase("architectures");
        json.erase("model_type");
    });
    expect_refused({"config.json", "it names no architecture"});
}

TEST_F(HostileModel, TextsOfFilesReachNoTerminal) {
    const std::string escape =
        "\x1b[31mred\x1b]0;title\x07\xc2\x9b"
        "2J\nsecond";
    change("config.json", [&](Json& json) { json["hidden_act"] = escape; });
    expect_refused({"hidden_act"});
    change("config.json", [&](Json& json) { json["architectures"] = {escape}; });
    expect_refused({"red"});
    const reference::TinyModel other{reference::TinyShape{}};
    const auto expect_tokenizer = [&](const std::function<void(Json&)>& how) {
        Json json = Json::parse(read_text_file(other.folder() / "tokenizer.json"));
        how(json);
        write_text_file(other.folder() / "tokenizer.json", json.dump());
        EXPECT_NE(refusal_of(other.folder()).find("tokenizer.json"), std::string::npos);
    };
    expect_tokenizer([&](Json& json) { json["normalizer"] = {{"type", escape}}; });
    expect_tokenizer([&](Json& json) {
        json["normalizer"] = nullptr;
        json["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", "(" + escape}}}, {"behavior", "Isolated"}};
    });
    expect_tokenizer([&](Json& json) {
        json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", escape}};
    });
    fs::remove(other.folder() / "model.safetensors");
    write_text_file(other.folder() / "model.safetensors.index.json",
                    Json{{"weight_map", {{escape, "../x"}}}}.dump());
    refusal_of(other.folder());
    write_text_file(other.folder() / "model.safetensors.index.json",
                    Json{{"weight_map", {{"x", escape}}}}.dump());
    refusal_of(other.folder());
}

TEST_F(HostileModel, FaultsOfVocabularyFilesNameTheFileAtFault) {
    make_plain(letters(), "#version: 0.2\na b\n");
    std::string said = refusal();
    EXPECT_NE(said.find("merges.txt: merge 0 (a b)"), std::string::npos) << said;
    EXPECT_EQ(said.find("vocab.json"), std::string::npos) << said;
    write_text_file(file("merges.txt"), "ab\n");
    expect_refused({"merges.txt: merge 0 has no blank"});
    write_text_file(file("merges.txt"), "#version: 0.2\n");
    write_text_file(file("added_tokens.json"), R"({"<x>": -4})");
    expect_refused({"added_tokens.json: the id of <x> is -4, wanted a whole number from 0 to"});
    write_text_file(file("added_tokens.json"), "[");
    expect_refused({"added_tokens.json", "line 1"});
    write_text_file(file("added_tokens.json"), Json{{std::string(2000, 'x'), 3}}.dump());
    expect_refused({"added_tokens.json", "2000 bytes, at most 1024"});
    write_text_file(file("added_tokens.json"), "{}");
    write_text_file(file("vocab.json"), R"({"a": "b"})");
    expect_refused({"vocab.json: the id of a is \"b\""});
    write_text_file(file("vocab.json"), letters().dump());
    EXPECT_NO_THROW(load_model(folder_));
}

TEST_F(HostileModel, TokenizersThatMultiplyAreRefused) {
    const Json whole = Json::parse(read_text_file(file("tokenizer.json")));
    change("tokenizer.json", [](Json& json) {
        Json& post = json["post_processor"];
        post["special_tokens"]["<s>"]["ids"] = std::vector<int>(2000, 256);
        for (int i = 0; i < 2000; ++i) post["single"].push_back(post["single"][0]);
    });
    expect_refused({"tokenizer.json", "adds more than 1000 ids"});
    write_text_file(file("tokenizer.json"), whole.dump());
    change("tokenizer.json", [](Json& json) {
        Json steps = Json::array();
        for (int i = 0; i < 33; ++i) steps.push_back({{"type", "Fuse"}});
        json["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
    });
    expect_refused({"tokenizer.json", "decoders has more than 32 members"});
    // After a Fuse each step sees the whole text, which grows with every step.
    change("tokenizer.json", [](Json& json) {
        Json steps = Json::array({{{"type", "Fuse"}}});
        for (int i = 0; i < 20; ++i)
            steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}});
        json["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
    });
    const auto model = load_model(folder_);
    EXPECT_THROW(model->tokenizer().decode(std::vector<int>{'a', 'a'}), Error);
}

TEST_F(HostileModel, RegularExpressionsHaveSoManySteps) {
    const auto pattern = [&](const std::string& regex) {
        change("tokenizer.json", [&](Json& json) {
            json["pre_tokenizer"] = {{"type", "Split"},
                                     {"pattern", {{"Regex", regex}}},
                                     {"behavior", "Isolated"},
                                     {"invert", false}};
        });
        return load_model(folder_);
    };
    // Two million matching steps per place are within PCRE2's limit for one match, but add up to a billion
    // over the text.
    const auto slow = pattern("a*a*[bc]");
    EXPECT_EQ(slow->tokenizer().encode("aab", false).size(), 3u);
    try {
        slow->tokenizer().encode(std::string(2000, 'a'));
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_NE(said.find(file("tokenizer.json").string()), std::string::npos) << said;
        EXPECT_NE(said.find("a*a*[bc] takes too many steps"), std::string::npos) << said;
    }
    EXPECT_THROW(pattern("(*NO_JIT)a"), Error);
    // The usual word-splitting pattern handles long runs.
    const auto words = pattern(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                               R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
    for (const std::string& run : {std::string(" "), std::string("a"), std::string("."), std::string(" \n"),
                                   std::string("\xc3\xa9"), std::string("\x80")}) {
        std::string text;
        while (text.size() < 300'000) text += run;
        EXPECT_NO_THROW(words->tokenizer().encode(text + "x")) << run;
    }
}

std::vector<AddedToken> added_tokens(std::size_t n) {
    std::vector<AddedToken> tokens;
    for (std::size_t i = 0; i < n; ++i)
        tokens.push_back({static_cast<int>(i), "<extra_" + std::to_string(i * 7 % n)});
    return tokens;
}

TEST(AddedTokens, WorkGrowsWithTheirNumberNotItsSquare) {
    const AddedTokenFinder few(added_tokens(2'000)), many(added_tokens(8'000));
    EXPECT_LT(many.n_compared(), 6 * few.n_compared());
    std::string text, longer;
    for (int i = 0; i < 5'000; ++i) text += "<<extra_" + std::to_string(i);
    for (int i = 0; i < 4; ++i) longer += text;
    std::size_t of_few = 0, of_many = 0, of_longer = 0;
    few.split(text, &of_few);
    many.split(text, &of_many);
    many.split(longer, &of_longer);
    EXPECT_LT(of_many, 2 * of_few);
    EXPECT_LT(of_longer, 5 * of_many);
    // Each token is a prefix of the next. A search must not walk this chain for each token at every byte.
    std::vector<AddedToken> chain;
    for (int i = 1; i <= 1'000; ++i) chain.push_back({i, std::string(to_index(i), 'a')});
    std::size_t of_chain = 0;
    AddedTokenFinder(chain).split(std::string(100'000, 'a') + "b", &of_chain);
    EXPECT_LT(of_chain, 10'000u);
}

TEST(AddedTokens, AreFoundAsOneByOne) {
    std::mt19937 random(5);
    const auto word = [&](std::size_t most) {
        std::string text;
        for (std::size_t n = 1 + random() % most; n > 0; --n) text += static_cast<char>('a' + random() % 3);
        return text;
    };
    for (int round = 0; round < 200; ++round) {
        std::vector<AddedToken> tokens;
        for (int i = 0; i < 12; ++i) tokens.push_back({i, word(5)});
        const std::string text = word(60);
        std::vector<std::pair<int, std::string>> expected;
        std::string between;
        for (std::size_t at = 0; at < text.size();) {
            const AddedToken* best = nullptr;
            for (const AddedToken& token : tokens) {
                if (text.compare(at, token.content.size(), token.content) != 0) continue;
                if (best == nullptr || token.content.size() > best->content.size()) best = &token;
            }
            if (best == nullptr) {
                between += text[at++];
                continue;
            }
            if (!between.empty()) expected.emplace_back(-1, std::exchange(between, ""));
            expected.emplace_back(best->id, best->content);
            at += best->content.size();
        }
        if (!between.empty()) expected.emplace_back(-1, between);
        std::vector<std::pair<int, std::string>> found;
        for (const TextPart& part : AddedTokenFinder(tokens).split(text))
            found.emplace_back(part.id, std::string(part.text));
        EXPECT_EQ(found, expected) << text;
    }
}

TEST_F(HostileModel, ManyAddedTokensLoad) {
    change("config.json", [](Json& json) { json["vocab_size"] = 300'000; });
    Json more;
    for (int i = 0; i < 60'000; ++i) more["<extra_" + std::to_string(i) + ">"] = 100 + i;
    make_plain(letters(), "#version: 0.2\n");
    write_text_file(file("added_tokens.json"), more.dump());
    const Tokenizer plain = Tokenizer::from_folder(folder_);
    // Ids follow the vocabulary's in the order that the file gives them, as in transformers.
    EXPECT_EQ(plain.n_vocab(), 60'026);
    EXPECT_EQ(plain.encode("a<extra_7>b", false), (std::vector<int>{0, 33, 1}));
    ASSERT_EQ(plain.warnings().size(), 1u);
    EXPECT_NE(plain.warnings()[0].find("<extra_0> the id 100; it has 26, as in transformers (60000 tokens"),
              std::string::npos)
        << plain.warnings()[0];
}

TEST_F(HostileModel, ShapesAndHeadersOfWeightsAreBounded) {
    const auto write = [&](const std::string& header) {
        std::string bytes(8, '\0');
        for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
        write_text_file(file("model.safetensors"), bytes + header);
    };
    write(R"({"x":{"dtype":"F32","data_offsets":[0,0],"shape":[)" + [] {
        std::string extents;
        for (int i = 0; i < 100'000; ++i) extents += "1,";
        return extents;
    }() + "0]}}");
    expect_refused({"model.safetensors", "tensor x has an impossible shape"});
    std::string lists = "{\"x\":[";
    for (int i = 0; i < 2'100'000; ++i) lists += "[],";
    write(lists + "0]}");
    expect_refused({"model.safetensors", "its header holds 4200003 values"});
    write("{\"x\": nul}");
    expect_refused({"model.safetensors", "its header is not JSON at line 1"});
}

TEST_F(HostileModel, AFileThatIsCutEndsTheRunWithItsName) {
    const auto model = load_model(folder_);
    const auto backend = cpu(model);
    Session session(model, *backend, reference::run_spec("the garden gate", {"full", "h2o:budget=4"}, 20));
    session.prefill();
    EXPECT_NE(session.step(), nullptr);
    EXPECT_TRUE(WeightFiles(*model).unchanged());
    fs::resize_file(file("model.safetensors"), 4096);
    EXPECT_FALSE(WeightFiles(*model).unchanged());
    try {
        session.step();
        ADD_FAILURE() << "went on";
    } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_NE(said.find(file("model.safetensors").string()), std::string::npos) << said;
        EXPECT_NE(said.find("was cut to 4096"), std::string::npos) << said;
    }
    Session prompt(model, *backend, reference::run_spec("the garden gate", {"full"}, 20));
    EXPECT_THROW(prompt.prefill(), Error);
}

TEST_F(HostileModel, AnEmptyPromptIsTheBosWhereThereIsOne) {
    const auto first_tokens = [&](const std::shared_ptr<const Model>& model) {
        const auto backend = cpu(model);
        Session session(model, *backend, reference::run_spec("", {"full"}, 3));
        session.prefill();
        EXPECT_NE(session.step(), nullptr);
        return session.run().prompt_tokens;
    };
    EXPECT_EQ(first_tokens(load_model(folder_)), std::vector<int>{reference::kBos});
    // GPT-2's kind: config.json has a BOS, but the tokenizer puts nothing before a text.
    change("tokenizer.json", [](Json& json) { json["post_processor"] = nullptr; });
    EXPECT_EQ(first_tokens(load_model(folder_)), std::vector<int>{reference::kBos});
    change("config.json", [](Json& json) { json["bos_token_id"] = nullptr; });
    try {
        first_tokens(load_model(folder_));
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_NE(std::string(error.what()).find("no BOS token"), std::string::npos) << error.what();
    }
}

TEST_F(HostileModel, ConvertCopiesNoFileFromElsewhere) {
    const reference::TempFolder home("home");
    write_text_file(home.path() / "secret", "secret");
    const fs::path out = home.path() / "out";
    const KvSharing mqa{KvSharing::Kind::mqa};
    const auto refused = [&](const char* part) {
        try {
            convert_model(folder_, mqa, out);
            ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
            const std::string said = error.what();
            EXPECT_NE(said.find("tokenizer.model"), std::string::npos) << said;
            EXPECT_NE(said.find(part), std::string::npos) << said;
        }
        EXPECT_FALSE(fs::exists(out));
    };
    link("tokenizer.model", home.path() / "secret");
    refused("outside of the folder");
    fs::create_hard_link(home.path() / "secret", file("copy"));
    fs::create_directories(home.path() / "blobs");
    link("tokenizer.model", "../secret-of-nobody");
    refused("which is not there");
    link("tokenizer.model", "/dev/zero");
    refused("it is a device");
    // A link within the folder counts as a file of the folder.
    link("tokenizer.model", "copy");
    convert_model(folder_, mqa, out);
    EXPECT_EQ(read_text_file(out / "tokenizer.model"), "secret");
    EXPECT_FALSE(fs::is_symlink(out / "tokenizer.model"));
    fs::remove_all(out);

    // The Hugging Face cache: links in snapshots/<revision> point to blobs.
    const fs::path snapshot = home.path() / "snapshots" / "0123";
    fs::create_directories(snapshot);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
        if (entry.path().filename() == "tokenizer.model") continue;
        fs::copy_file(entry.path(), home.path() / "blobs" / entry.path().filename());
        fs::create_symlink("../../blobs" / entry.path().filename(), snapshot / entry.path().filename());
    }
    convert_model(snapshot, mqa, out);
    EXPECT_EQ(read_text_file(out / "tokenizer.json"), read_text_file(file("tokenizer.json")));
}

}  // namespace
}  // namespace keyhole::test_hostile_models
