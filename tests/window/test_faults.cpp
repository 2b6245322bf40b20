// Faults around the program: signals, full disks, closed descriptors, two programs on one file, limits,
// crashes. The tests run the program as a user does. Tests of the window need a display; the others do not.
#include "engine/base/npy.h"
#include "tests/app/program_run.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <regex>
#include <thread>
#include <vector>

namespace keyhole::test_faults {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class Faults : public testing::ProgramRun {
  protected:
    void SetUp() override {  // needs no display
        folder_ = fs::temp_directory_path() / ("keyhole-faults-" + std::to_string(::getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        ::setenv("XDG_STATE_HOME", path("state").c_str(), 1);
    }
    void TearDown() override {
        if (pid_ > 0) end(SIGKILL);
        ::unsetenv("XDG_STATE_HOME");
        fs::remove_all(folder_);
    }

    std::string decode(int n_tokens, const std::string& more) const {
        return "decode --model '" + testing::kModel + "' --prompt-file '" + testing::kPrompt +
               "' --ignore-eos --lane full --lane h2o:budget=32 --tokens " + std::to_string(n_tokens) + " " +
               more;
    }
    std::string out(const std::string& list = "run,attention") const {
        return "--out '" + path("out") + "' --yes --export " + list;
    }
    std::string save() const { return "--save '" + path("run.keyhole") + "'"; }

    /// Starts the program in the background, with its output in out.txt. end() or ended() returns its status.
    void start(const std::string& arguments, const std::string& before = "") {
        const std::string command = in_folder() + before + " exec '" + reference::built("keyhole") + "' " +
                                    arguments + " > '" + path("out.txt") + "' 2>&1";
        pid_ = ::fork();
        if (pid_ == 0) {
            ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
            ::_exit(127);
        }
    }
    /// Waits for the program's end and returns its wait status.
    int ended() {
        int status = 0;
        ::waitpid(std::exchange(pid_, -1), &status, 0);
        output_ = read("out.txt");
        return status;
    }
    int end(int signal) {
        ::kill(pid_, signal);
        return ended();
    }
    /// Returns false when the program ended first, or after a minute.
    bool wait_until(const std::function<bool()>& holds) {
        for (const auto begin = std::chrono::steady_clock::now(); !holds();) {
            if (std::chrono::steady_clock::now() - begin > 60s) return false;
            if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
                pid_ = -1;
                output_ = read("out.txt");
                return holds();
            }
            std::this_thread::sleep_for(2ms);
        }
        return true;
    }

    /// Returns false while the file is missing: file_size() then returns the largest number.
    static bool holds_bytes(const fs::path& file, std::uintmax_t more_than) {
        std::error_code missing;
        const std::uintmax_t n_bytes = fs::file_size(file, missing);
        return !missing && n_bytes > more_than;
    }
    bool there(const std::string& name) const { return fs::exists(path(name)); }
    std::vector<fs::path> crash_files() const {
        std::vector<fs::path> files;
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(path("state/keyhole"), none))
            if (entry.path().extension() == ".txt") files.push_back(entry.path());
        return files;
    }
    static std::size_t count(const std::string& text, const std::string& part) {
        std::size_t n = 0;
        for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
        return n;
    }
    /// Expects one line that begins with "keyhole: " and contains `part`.
    void expect_one_line(const std::string& part) const {
        EXPECT_EQ(count("\n" + output_, "\nkeyhole: "), 1u) << output_;
        EXPECT_NE(output_.find(part), std::string::npos) << output_;
        EXPECT_EQ(output_.find("unexpected"), std::string::npos) << output_;
    }

    pid_t pid_ = -1;
};

// --- exports ---

TEST_F(Faults, AnEndedExportLeavesTheOneBefore) {
    ASSERT_EQ(run(decode(4, out())), 0) << output_;
    const std::string old_run = read("out/run.json"), old_rows = read("out/lane1/attention.npy");
    ASSERT_FALSE(old_run.empty());
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGKILL}) {
        start(decode(3000, out()));
        ASSERT_TRUE(wait_until([&] { return there("out/export.part/lane1/attention.npy"); })) << output_;
        const int status = end(signal);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
        EXPECT_EQ(read("out/run.json"), old_run) << signal;
        EXPECT_EQ(read("out/lane1/attention.npy"), old_rows) << signal;
        EXPECT_EQ(there("out/export.part"), signal == SIGKILL) << signal;
    }
    ASSERT_EQ(run(decode(5, out())), 0) << output_;
    EXPECT_FALSE(there("out/export.part"));
    EXPECT_NE(read("out/run.json"), old_run);
    EXPECT_EQ(read_npy(path("out/lane1/attention.npy")).shape[0], 5);
}

TEST_F(Faults, AFullDiskLeavesTheExportBeforeAndTheSpool) {
    ASSERT_EQ(run(decode(4, out())), 0) << output_;
    const std::string old_run = read("out/run.json"), old_rows = read("out/lane0/attention.npy");
    // Writes beyond the file-size limit fail as on a full disk.
    const std::string full = "trap '' XFSZ; ulimit -f 2000; ";
    EXPECT_EQ(run(decode(100, out()), full), 1);
    expect_one_line("File too large");
    EXPECT_EQ(read("out/run.json"), old_run);
    EXPECT_EQ(read("out/lane0/attention.npy"), old_rows);
    EXPECT_FALSE(there("out/export.part"));
    EXPECT_EQ(run(decode(300, save()), "trap '' XFSZ; ulimit -f 24000; "), 1);
    expect_one_line("run.keyhole.spool");
    EXPECT_FALSE(there("run.keyhole"));
    ASSERT_EQ(run("replay '" + path("run.keyhole") + "'"), 0) << output_;
    EXPECT_NE(output_.find("recovered"), std::string::npos) << output_;
    EXPECT_TRUE(there("run.keyhole"));
}

TEST_F(Faults, TheSecondOfTwoProgramsOnOnePlaceIsRefusedAtItsStart) {
    start(decode(3000, out() + " " + save()));
    ASSERT_TRUE(wait_until([&] {
        return there("out/export.part/lane1/attention.npy") && there("run.keyhole.spool/frames.bin");
    })) << output_;
    const pid_t first = std::exchange(pid_, -1);
    EXPECT_EQ(run(decode(4, out())), 1);
    expect_one_line("another Keyhole");
    EXPECT_EQ(run(decode(4, save())), 1);
    expect_one_line("another Keyhole");
    EXPECT_EQ(run("replay '" + path("run.keyhole.spool") + "'"), 1);
    expect_one_line("another Keyhole");
    pid_ = first;
    end(SIGKILL);
    EXPECT_EQ(run(decode(4, out() + " " + save())), 0) << output_;
}

// --- --save ---

TEST_F(Faults, SaveRefusesWhatIsNoFileBeforeTheWork) {
    fs::create_directory(path("folder"));
    // Not /dev/null itself: a failing test run as root would replace it.
    const bool device = ::mknod(path("device").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0;
    if (!device) {
        ASSERT_EQ(::mkfifo(path("device").c_str(), 0600), 0);
    }
    const auto refused = [&](const std::string& file, const char* part) {
        const int status = run(decode(4, "--save '" + file + "'"));
        EXPECT_TRUE(status == 1 || status == 2) << status;
        expect_one_line(part);
        EXPECT_EQ(output_.find("prompt of"), std::string::npos) << "decoded first";
    };
    refused(path("device"), "a device or a pipe");
    refused(path("folder"), "it is a folder");
    refused(path("absent/run.keyhole"), "make it first");
    fs::create_directory(path("run.keyhole.spool"));
    std::ofstream(path("run.keyhole.spool/thesis.txt")) << "mine";
    refused(path("run.keyhole"), "thesis.txt");
    EXPECT_EQ(read("run.keyhole.spool/thesis.txt"), "mine");
    EXPECT_EQ(fs::is_character_file(path("device")), device);
    EXPECT_FALSE(fs::is_regular_file(path("device")));
    EXPECT_FALSE(there("absent"));
    EXPECT_TRUE(fs::is_empty(path("folder")));
}

TEST_F(Faults, AFolderThatMayNotBeWrittenIsCalledSo) {
    fs::create_directory(path("locked"));
    fs::permissions(path("locked"), fs::perms::owner_read | fs::perms::owner_exec);
    std::string before;
    if (::geteuid() == 0) before = "exec setpriv --reuid=65534 --clear-groups";
    if (::geteuid() == 0 && std::system("setpriv --reuid=65534 --clear-groups true 2> /dev/null") != 0)
        GTEST_SKIP() << "root may write everywhere, and there is no setpriv";
    fs::permissions(path("locked"), fs::perms::others_read | fs::perms::others_exec, fs::perm_options::add);
    EXPECT_EQ(run(decode(4, "--save '" + path("locked/run.keyhole") + "'"), before), 1) << output_;
    expect_one_line("Permission denied");
}

TEST_F(Faults, ASignalNamesTheSpoolThatTheRunLeaves) {
    for (const int signal : {SIGINT, SIGTERM}) {
        start(decode(3000, save()));
        ASSERT_TRUE(wait_until([&] { return holds_bytes(path("run.keyhole.spool/frames.bin"), 500'000); }))
            << output_;
        const int status = end(signal);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
        EXPECT_NE(output_.find("keyhole replay " + path("run.keyhole.spool")), std::string::npos) << output_;
        EXPECT_NE(output_.find(std::string("ended by ") + (signal == SIGINT ? "SIGINT" : "SIGTERM") +
                               ": the steps so far are in "),
                  std::string::npos)
            << output_;
        ASSERT_EQ(run("replay '" + path("run.keyhole.spool") + "'"), 0) << output_;
        EXPECT_FALSE(there("run.keyhole.spool"));
        EXPECT_TRUE(there("run.keyhole"));
        fs::remove(path("run.keyhole"));
    }
}

/// A sweep's answers are in its file, and a second run finds exactly as many.
TEST_F(Faults, ASignalSaysWhatASweepKeeps) {
    const std::string sweep = "sweep --model '" + testing::kModel +
                              "' --task needle,list --context 300 --samples 100 --lane full --lane h2o"
                              " --vary budget=16,32 --bounds 0 --out '" +
                              path("s") + "'";
    for (const int signal : {SIGINT, SIGTERM}) {
        start(sweep, "export KEYHOLE_PROGRESS=off;");
        ASSERT_TRUE(wait_until([&] {
            const std::string text = read("s/answers.csv");
            return std::count(text.begin(), text.end(), '\n') > (signal == SIGINT ? 6 : 12);
        })) << output_;
        const int status = end(signal);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
        expect_one_line(std::string("keyhole: ended by ") + (signal == SIGINT ? "SIGINT" : "SIGTERM") + ": ");
        std::smatch found;
        ASSERT_TRUE(std::regex_search(
            output_, found,
            std::regex("([0-9]+) of 600 answers are kept in (.*)/answers.csv; the same command goes on\n")))
            << output_;
        EXPECT_EQ(found[2], path("s"));
        const std::string text = read("s/answers.csv");
        const auto n_lines = std::count(text.begin(), text.end(), '\n') - 1;  // without the header
        // The signal may come between the file and the count of it.
        EXPECT_LE(std::stoi(found[1]), n_lines);
        EXPECT_GE(std::stoi(found[1]), n_lines - 6);
    }
}

TEST_F(Faults, ASignalSaysThatNothingIsKept) {
    start("eval --model '" + testing::kModel + "' --task needle --context 300 --samples 400",
          "export KEYHOLE_PROGRESS=0;");
    ASSERT_TRUE(wait_until([&] { return read("out.txt").find("eval: ") != std::string::npos; })) << output_;
    EXPECT_TRUE(WIFSIGNALED(end(SIGINT)));
    EXPECT_TRUE(std::regex_search(
        output_,
        std::regex("keyhole: ended by SIGINT: [0-9]+ of 400 questions were answered; nothing is kept;"
                   " --out FOLDER keeps every answer, and goes on from there")))
        << output_;
    start("lesson --check 1 12 2", "export KEYHOLE_PROGRESS=off;");  // none needs a model that may be missing
    ASSERT_TRUE(wait_until([&] { return read("out.txt").find("\n 1 cache") != std::string::npos; }))
        << output_;
    EXPECT_TRUE(WIFSIGNALED(end(SIGTERM)));
    EXPECT_NE(output_.find("ended by SIGTERM: 1 of 3 lessons were checked; the lines printed are whole"),
              std::string::npos)
        << output_;
}

// --- what is printed ---

TEST_F(Faults, LostOutputIsAFailure) {
    const std::string text = path("text.txt");
    std::ofstream(text) << "Once upon a time there was a cat who sat on the mat and looked at the moon.\n";
    const std::string model = " --model '" + testing::kModel + "'";
    const auto lost = [&](const std::string& command, const std::string& where) {
        const std::string line = "'" + reference::built("keyhole") + "' " + command + " " + where + " 2> '" +
                                 path("notes.txt") + "'";
        const int status = std::system(line.c_str());
        output_ = read("notes.txt");
        return WEXITSTATUS(status);
    };
    for (const std::string& command : {"info" + model, std::string("info --options"), "info --json" + model,
                                       "eval --json --context 16" + model + " --text '" + text + "'",
                                       decode(4, out("run")), std::string("--help")}) {
        EXPECT_EQ(lost(command, "> /dev/full"), 1) << command;
        expect_one_line("No space left");
    }
    EXPECT_TRUE(there("out/run.json")) << "the export does not depend on what is printed";
    EXPECT_EQ(lost("info --options", ">&-"), 1);
    expect_one_line("Bad file descriptor");
}

// Enough text that it is written before the exports are.
TEST_F(Faults, AReaderThatGoesAwayCostsNoFile) {
    const std::string line = "'" + reference::built("keyhole") + "' " +
                             decode(200, "--json " + out("run") + " " + save()) + " 2> '" +
                             path("notes.txt") + "' | true";
    EXPECT_EQ(std::system(line.c_str()), 0);
    EXPECT_TRUE(there("out/run.json")) << read("notes.txt");
    EXPECT_TRUE(there("run.keyhole")) << read("notes.txt");
    EXPECT_FALSE(there("run.keyhole.spool"));
    EXPECT_EQ(read("notes.txt").find("keyhole: "), std::string::npos) << read("notes.txt");
}

TEST_F(Faults, ClosedDescriptorsGetNoMessages) {
    const auto status_of = [&](const char* closed) {
        const std::string line =
            "'" + reference::built("keyhole") + "' " + decode(4, out() + " " + save()) + " " + closed;
        fs::remove_all(path("out"));
        fs::remove(path("run.keyhole"));
        const int status = std::system(line.c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    };
    for (const auto& [closed, expected] : {std::pair("> /dev/null 2>&-", 0),
                                           {"<&- > /dev/null 2>&-", 0},
                                           {">&- 2>&-", 1},
                                           {"<&- >&- 2>&-", 1}}) {
        EXPECT_EQ(status_of(closed), expected) << closed;
        const NpyArray rows = read_npy(path("out/lane0/attention.npy"));
        EXPECT_EQ(rows.shape[0], 4) << closed;
        EXPECT_TRUE(there("run.keyhole")) << closed;
    }
    EXPECT_EQ(run("replay '" + path("run.keyhole") + "'"), 0) << output_;
}

TEST_F(Faults, ThreadsThatDoNotStartAreDoneWithout) {
    std::string before = "exec prlimit --nproc=20";
    if (::geteuid() == 0)
        before += " setpriv --reuid=65534 --clear-groups";  // the limit does not apply to root
    if (std::system(("(" + before + " true) 2> /dev/null").c_str()) != 0)
        GTEST_SKIP() << "no prlimit or setpriv";
    limit_s_ = 60;
    const int status = run(decode(4, "--threads 64"), before);
    EXPECT_TRUE(status == 0 || status == 1) << status << output_;
    if (status == 1) expect_one_line("thread");
}

// Stacks of many threads leave room for the libraries, some of which do not survive a refused mapping.
TEST_F(Faults, ManyThreadsFitIntoASmallAddressSpace) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers need terabytes";
#endif
    limit_s_ = 60;
    for (const char* kib : {"4194304", "2097152", "1048576"}) {
        const int status = run(decode(2, "--threads 1024"), std::string("ulimit -v ") + kib + ";");
        EXPECT_TRUE(status == 0 || status == 1) << kib << " " << status << output_;
        if (status == 1) expect_one_line("no memory");
    }
}

// --- crashes ---

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

#ifdef KH_NO_ASSERT
constexpr bool kCrashesOnRequest = false;
#else
constexpr bool kCrashesOnRequest = true;
#endif

TEST_F(Faults, ACrashLeavesOneFileThatIsNamedAtOnceAndAtTheNextStart) {
    if (kSanitized) GTEST_SKIP() << "a sanitizer handles the signals";
    if (!kCrashesOnRequest) GTEST_SKIP() << "a program without assertions crashes on no request";
    struct Case {
        const char* how;
        int signal;
        const char* part;
    };
    for (const Case& c :
         {Case{"segv", SIGSEGV, "SIGSEGV"}, Case{"bus", SIGBUS, "SIGBUS"}, Case{"fpe", SIGFPE, "SIGFPE"},
          Case{"ill", SIGILL, "SIGILL"}, Case{"abort", SIGABRT, "SIGABRT"},
          Case{"terminate", SIGABRT, "uncaught"}, Case{"assert", SIGABRT, "a test of the crash report"},
          Case{"stack", SIGSEGV, "SIGSEGV"}}) {
        fs::remove_all(path("state"));
        start("info --options --model '" + path("secret") + "' --lane h2o:budget=32",
              std::string("ulimit -c 0; export KEYHOLE_CRASH_TEST=") + c.how + ";");
        const int status = ended();
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == c.signal) << c.how << " " << status << output_;
        const std::vector<fs::path> files = crash_files();
        ASSERT_EQ(files.size(), 1u) << c.how << output_;
        EXPECT_NE(output_.find(files[0].string()), std::string::npos) << output_;
        const std::string report = read("state/keyhole/" + files[0].filename().string());
        EXPECT_NE(report.find(c.part), std::string::npos) << report;
        EXPECT_NE(report.find("Keyhole 0."), std::string::npos) << report;
        EXPECT_NE(report.find("h2o:budget=32"), std::string::npos) << report;
        EXPECT_GE(count(report, "+0x"), 3u) << report;
        EXPECT_NE(report.find("keyhole+0x"), std::string::npos) << report;
        EXPECT_EQ(report.find("secret"), std::string::npos) << report;
        EXPECT_EQ(run("info --options"), 0);
        EXPECT_NE(output_.find(files[0].string()), std::string::npos) << c.how;
        EXPECT_EQ(run("info --options"), 0);
        EXPECT_EQ(output_.find("crash"), std::string::npos) << c.how;
    }
}

TEST_F(Faults, TheReportsAddressesAreLinesOfTheProgram) {
    if (kSanitized) GTEST_SKIP() << "a sanitizer handles the signals";
    if (!kCrashesOnRequest) GTEST_SKIP() << "a program without assertions crashes on no request";
    start("info --options", "ulimit -c 0; export KEYHOLE_CRASH_TEST=segv;");
    ended();
    ASSERT_EQ(crash_files().size(), 1u) << output_;
    const std::string report = read("state/keyhole/" + crash_files()[0].filename().string());
    if (std::system("addr2line --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no addr2line";
    std::string names;
    for (std::size_t at = report.find("keyhole+0x"); at != std::string::npos;
         at = report.find("keyhole+0x", at + 1)) {
        const std::string offset = report.substr(at + 8, report.find_first_of(" \n", at) - at - 8);
        const std::string line = "addr2line -Cfie '" + reference::built("keyhole") + "' " + offset + " >> '" +
                                 path("lines.txt") + "'";
        ASSERT_EQ(std::system(line.c_str()), 0);
    }
    EXPECT_NE(read("lines.txt").find("crash_on_request"), std::string::npos) << report << read("lines.txt");
}

/// As Faults, with a window.
class WindowFaults : public Faults {
  protected:
    void SetUp() override {
        if (!testing::has_display()) GTEST_SKIP() << "no display";
        Faults::SetUp();
    }
    void TearDown() override {
        if (!folder_.empty()) Faults::TearDown();
    }
    std::string gui(const std::string& script) const {
        std::ofstream(path("script.txt")) << script;
        return "gui --model '" + testing::kModel + "' --prompt-file '" + testing::kPrompt + "'" +
               testing::kLanes + " --size 1280x800 --keep-in '" + path("runs") + "' --script '" +
               path("script.txt") + "'";
    }
    std::vector<fs::path> kept(const std::string& extension) const {
        std::vector<fs::path> found;
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(path("runs"), none))
            if (entry.path().extension() == extension) found.push_back(entry.path());
        return found;
    }
    /// Waits until the live run's spool holds some rows.
    bool wait_for_rows() {
        return wait_until([&] {
            return kept(".spool").size() == 1 && holds_bytes(kept(".spool")[0] / "frames.bin", 1'000'000);
        });
    }
};

TEST_F(WindowFaults, AKilledWindowsRunIsOfferedAtTheNextStart) {
    for (const int signal : {SIGKILL, SIGSEGV}) {
        if (kSanitized && signal == SIGSEGV) continue;
        start(gui("wait idle\nrun.play\nwait seconds 60\nquit\n"), "ulimit -c 0;");
        ASSERT_TRUE(wait_for_rows()) << output_;
        const fs::path spool = kept(".spool")[0];
        EXPECT_EQ(run("replay '" + spool.string() + "'"), 1) << "it is in use";
        EXPECT_NE(output_.find("another Keyhole"), std::string::npos) << output_;
        // A second window does not offer the run that the first one still writes.
        const pid_t first = std::exchange(pid_, -1);
        EXPECT_NE(run(gui("wait idle\npoint left run open\nquit\n")), 0) << output_;
        for (const fs::path& other : kept(".spool"))
            if (other != spool) fs::remove_all(other);  // the script's error ended that window
        pid_ = first;
        const int status = end(signal);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
        if (signal == SIGSEGV) {
            EXPECT_NE(output_.find(spool.string()), std::string::npos) << output_;
        }
        ASSERT_EQ(run(gui("wait idle\npoint left run open\nclick\nwait idle\nfile.export " + path("out") +
                          " run\nwait idle\nquit\n")),
                  0)
            << output_;
        EXPECT_TRUE(kept(".spool").empty());
        ASSERT_EQ(kept(".keyhole").size(), 1u);
        EXPECT_EQ(run("replay '" + kept(".keyhole")[0].string() + "'"), 0) << output_;
        fs::remove_all(path("runs"));
    }
}

TEST_F(WindowFaults, ARunThatEndsWellIsNotKept) {
    ASSERT_EQ(run(gui("wait idle\nrun.play\nwait steps 5\nquit\n")), 0) << output_;
    EXPECT_TRUE(kept(".spool").empty());
    // A discarded run that did not end is deleted.
    start(gui("wait idle\nrun.play\nwait seconds 60\nquit\n"));
    ASSERT_TRUE(wait_for_rows()) << output_;
    end(SIGKILL);
    ASSERT_EQ(kept(".spool").size(), 1u);
    const std::string asks = "wait idle\npoint left run discard\nclick\nwait idle\n";
    ASSERT_EQ(run(gui(asks + "point left run keep\nclick\nquit\n")), 0) << output_;
    EXPECT_EQ(kept(".spool").size(), 1u) << "Discard asks first";
    ASSERT_EQ(run(gui(asks + "point left run delete\nclick\nwait idle\nquit\n")), 0) << output_;
    EXPECT_TRUE(kept(".spool").empty());
    EXPECT_TRUE(kept(".keyhole").empty());
}

// A drag runs an action in every frame. The report keeps the commands before it.
TEST_F(WindowFaults, ADragLeavesTheCommandsBeforeItInTheReport) {
    if (kSanitized) GTEST_SKIP() << "a sanitizer handles the signals";
    std::string script = "wait idle\nstep 1\nwait idle\n";
    for (int i = 0; i < 40; ++i) script += "view.region " + std::to_string(i) + " 0 3 3\n";
    start(gui(script + "measure.end " + path("done.json") + "\nwait seconds 60\nquit\n"), "ulimit -c 0;");
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(path("done.json")); })) << output_;
    end(SIGSEGV);
    ASSERT_EQ(crash_files().size(), 1u) << output_;
    const std::string report = read("state/keyhole/" + crash_files()[0].filename().string());
    EXPECT_NE(report.find("  step"), std::string::npos) << report;
    EXPECT_NE(report.find("  view.region 39 0 3 3"), std::string::npos) << report;
    EXPECT_EQ(report.find("view.region 38"), std::string::npos) << report;
}

}  // namespace
}  // namespace keyhole::test_faults
