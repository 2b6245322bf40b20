// What --model takes: a path, a name of the catalogue, a hub name; and what is said when nothing is found.
#include "app/models/find_model.h"
#include "engine/base/error.h"
#include "tests/app/fake_pip.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

namespace keyhole::test_find_model {
namespace {

namespace fs = std::filesystem;

class FindModel : public ::testing::Test {
  protected:
    FindModel() {
        for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
            environment_.set(name, std::nullopt);
        environment_.set("HOME", home().string());
        fs::create_directories(home());
        fs::current_path(home());
    }
    ~FindModel() override { fs::current_path(before_); }

    /// Writes an empty file with its folders.
    static fs::path touch(const fs::path& file) {
        fs::create_directories(file.parent_path());
        std::ofstream{file};
        return file;
    }
    /// Writes a repository as the hub's client does: a commit named by refs/main, and its files.
    static fs::path put_repository(const fs::path& cache, const std::string& folder,
                                   const std::vector<std::string>& files, bool with_main = true) {
        const fs::path snapshot = cache / folder / "snapshots" / "0123abcd";
        for (const std::string& file : files) touch(snapshot / file);
        if (with_main) std::ofstream(touch(cache / folder / "refs" / "main")) << "0123abcd";
        return snapshot;
    }
    fs::path found(const std::string& name) const {
        const FoundModel model = find_model(name, catalog_);
        EXPECT_EQ(model.to_get, nullptr) << name;
        return model.path;
    }
    void expect_refused(const std::string& name, const std::vector<std::string>& parts) const {
        try {
            const FoundModel model = find_model(name, catalog_);
            ADD_FAILURE() << name << " gave " << model.path;
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_EQ(text.find('\n'), std::string::npos) << text;
            for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
        }
    }
    fs::path home() const { return folder_.path() / "home"; }
    fs::path usual_cache() const { return home() / ".cache" / "huggingface" / "hub"; }

    reference::TempFolder folder_{"find-model"};
    const fs::path before_ = fs::current_path();
    testing::Environment environment_;
    const std::vector<CatalogModel> catalog_ = {testing::FakePip::model()};
};

TEST_F(FindModel, AFolderOrFileThatExistsWinsOverEveryName) {
    put_repository(usual_cache(), "models--org--name", {"config.json"});
    touch(home() / ".cache" / "keyhole" / "models" / "tiny.gguf");
    touch(home() / "org" / "name" / "config.json");
    touch(home() / "tiny");
    EXPECT_EQ(found("org/name"), "org/name");
    EXPECT_EQ(found("tiny"), "tiny");
    EXPECT_EQ(found(home().string() + "/org/name"), home() / "org" / "name");
    EXPECT_EQ(found("~/org/name"), home() / "org" / "name");
    touch(home() / "~" / "org" / "name" / "config.json");
    EXPECT_EQ(found("~/org/name"), "~/org/name");
}

TEST_F(FindModel, AFolderWithOneGgufFileStandsForIt) {
    touch(home() / "models" / "a.Q4_0.gguf");
    touch(home() / "models" / "README.md");
    EXPECT_EQ(found("models"), "models/a.Q4_0.gguf");
    EXPECT_TRUE(looks_like_model("models"));
    EXPECT_TRUE(looks_like_model("models/a.Q4_0.gguf"));
    EXPECT_FALSE(looks_like_model("models/README.md"));
    EXPECT_FALSE(looks_like_model(home()));
    touch(home() / "models" / "b.Q8_0.gguf");
    expect_refused("models", {"2 GGUF files; name one of them: a.Q4_0.gguf, b.Q8_0.gguf"});
    touch(home() / "models" / "config.json");
    EXPECT_EQ(found("models"), "models");
    fs::create_directory("empty");
    EXPECT_EQ(found("empty"), "empty") << "load_model() says what it lacks";
}

TEST_F(FindModel, NamesOfTheCatalogue) {
    const FoundModel missing = find_model("tiny", catalog_);
    ASSERT_EQ(missing.to_get, &catalog_[0]);
    EXPECT_TRUE(missing.path.empty());
    const fs::path file = touch(home() / ".cache" / "keyhole" / "models" / "tiny.gguf");
    EXPECT_EQ(find_model("tiny", catalog_).to_get, &catalog_[0]) << "the file is cut off";
    fs::resize_file(file, catalog_[0].bytes);
    EXPECT_EQ(found("tiny"), file);
    environment_.set("XDG_CACHE_HOME", (folder_.path() / "xdg").string());
    EXPECT_EQ(find_model("tiny", catalog_).to_get, &catalog_[0]);
    expect_refused("tinny", {"cannot find the model tinny", "did you mean tiny?", "keyhole get --list"});
    expect_refused("", {"empty"});
    expect_refused("a\nb", {"cannot find the model a?b"});
    const FoundModel own = find_model("keyhole-mqa", own_catalog());
    EXPECT_EQ(own.path.filename(), "keyhole-mqa");
    EXPECT_TRUE(fs::exists(own.path / "config.json"));
}

TEST_F(FindModel, HubNamesAreFoundInTheCacheByItsVariables) {
    const fs::path at = folder_.path();
    const fs::path usual = put_repository(usual_cache(), "models--org--name", {"config.json"}),
                   xdg = put_repository(at / "xdg/huggingface/hub", "models--org--name", {"config.json"}),
                   of_home = put_repository(at / "hf/hub", "models--org--name", {"config.json"}),
                   old = put_repository(at / "old", "models--org--name", {"config.json"}),
                   hub = put_repository(home() / "hub", "models--org--name", {"config.json"});
    EXPECT_EQ(found("org/name"), usual);
    for (const auto& [variable, value, expected] : {std::tuple("XDG_CACHE_HOME", (at / "xdg").string(), xdg),
                                                    {"HF_HOME", (at / "hf").string(), of_home},
                                                    {"HUGGINGFACE_HUB_CACHE", (at / "old").string(), old},
                                                    {"HF_HUB_CACHE", "~/hub", hub}}) {
        environment_.set(variable, value);
        EXPECT_EQ(found("org/name"), expected) << variable;
    }
}

TEST_F(FindModel, ARepositoryHasSnapshots) {
    const fs::path newer = usual_cache() / "models--org--name" / "snapshots" / "ffff";
    const fs::path main = put_repository(usual_cache(), "models--org--name", {"config.json"});
    touch(newer / "config.json");
    EXPECT_EQ(found("org/name"), main) << "refs/main names it";
    fs::remove_all(main);
    EXPECT_EQ(found("org/name"), newer) << "the only one";
    put_repository(usual_cache(), "models--org--by-commit", {"config.json"}, false);
    EXPECT_EQ(found("org/by-commit").filename(), "0123abcd");
    fs::create_directories(usual_cache() / "models--org--half" / "blobs");
    expect_refused("org/half", {"models--org--half: its download is not complete", "hf download org/half"});
    // A hostile name of a commit leads nowhere else.
    put_repository(usual_cache(), "models--org--two", {"config.json"});
    touch(usual_cache() / "models--org--two" / "snapshots" / "eeee" / "config.json");
    std::ofstream(usual_cache() / "models--org--two" / "refs" / "main") << "../../..";
    expect_refused("org/two", {"not complete"});
}

TEST_F(FindModel, ARepositoryMayHoldGgufFiles) {
    const fs::path snapshot = put_repository(usual_cache(), "models--org--q", {"m.Q4_1.gguf", "README.md"});
    EXPECT_EQ(found("org/q"), snapshot / "m.Q4_1.gguf");
    EXPECT_EQ(found("org/q/m.Q4_1.gguf"), snapshot / "m.Q4_1.gguf");
    touch(snapshot / "m.Q8_0.gguf");
    touch(snapshot / "deep" / "m.f16.gguf");
    expect_refused("org/q", {"2 GGUF files; name one of them: m.Q4_1.gguf, m.Q8_0.gguf"});
    EXPECT_EQ(found("org/q/m.Q8_0.gguf"), snapshot / "m.Q8_0.gguf");
    EXPECT_EQ(found("org/q/deep/m.f16.gguf"), snapshot / "deep/m.f16.gguf");
    expect_refused("org/q/m.Q2_K.gguf", {"does not hold the file", "hf download org/q m.Q2_K.gguf"});
}

TEST_F(FindModel, SaysTheCommandThatGetsAHubModel) {
    expect_refused("org/name.v1",
                   {"cannot find the model org/name.v1", usual_cache().string(),
                    "hf download org/name.v1 (older clients: huggingface-cli download org/name.v1)"});
    environment_.set("HOME", std::nullopt);
    expect_refused("org/name", {"hf download org/name"});
}

TEST_F(FindModel, OtherTextsAreNoHubNames) {
    touch(home() / "secret" / "config.json");
    for (const char* name : {"../secret2", "org/../../secret", "org/name/file.bin", "org/name/../x.gguf",
                             "/org/name", "org/na me", "-org/name", "org/", "org/name/"})
        expect_refused(name, {"no such folder or file"});
    std::string too_long(300, 'x');
    expect_refused(too_long.append("/y"), {});
}

}  // namespace
}  // namespace keyhole::test_find_model
