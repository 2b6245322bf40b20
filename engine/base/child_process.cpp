#include "engine/base/child_process.h"

#include "engine/base/error.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

extern char** environ;  // of POSIX

namespace keyhole {

namespace fs = std::filesystem;

namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
}

std::vector<std::string> joined_environment(const std::vector<std::pair<std::string, std::string>>& more) {
    std::vector<std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text(*entry);
        bool replaced = false;
        for (const auto& [name, value] : more) replaced = replaced || text.starts_with(name + "=");
        if (!replaced) all.emplace_back(text);
    }
    for (const auto& [name, value] : more) all.push_back(name + "=" + value);
    return all;
}

/// The new process, up to its program. Calls only what a copy of a process with threads may call.
[[noreturn]] void become(char* const* arguments, char* const* environment, int nothing, int to,
                         pid_t parent) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // Keyhole ended before prctl()
    for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGALRM}) ::signal(signal, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(to, STDOUT_FILENO);
    ::dup2(to, STDERR_FILENO);
    ::execve(arguments[0], arguments, environment);
    ::_exit(127);
}

}  // namespace

std::optional<fs::path> find_program(std::string_view name) {
    const char* listed = std::getenv("PATH");
    std::string_view folders = listed == nullptr ? "/usr/local/bin:/usr/bin:/bin" : listed;
    for (;;) {
        const std::size_t end = folders.find(':');
        const fs::path path = fs::path(folders.empty() || end == 0 ? "." : folders.substr(0, end)) / name;
        std::error_code error;
        if (fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0) return path;
        if (end == std::string_view::npos) return std::nullopt;
        folders.remove_prefix(end + 1);
    }
}

fs::path keyhole_program() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    return self.filename() == "keyhole" ? self : self.parent_path() / "keyhole";
}

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::vector<std::pair<std::string, std::string>>& environment) {
    std::vector<std::string> texts = command, variables = joined_environment(environment);
    const std::vector<char*> arguments = pointers(texts), all_variables = pointers(variables);
    std::array<int, 2> pipe{-1, -1};
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0 && ::pipe2(pipe.data(), O_CLOEXEC) == 0) {
        const pid_t parent = ::getpid();
        pid_ = ::fork();
        if (pid_ == 0) become(arguments.data(), all_variables.data(), nothing, pipe[1], parent);
    }
    const int error = errno;
    if (nothing >= 0) ::close(nothing);
    if (pipe[1] >= 0) ::close(pipe[1]);
    from_ = pipe[0];
    if (pid_ < 0) {
        if (from_ >= 0) ::close(from_);
        fail(ErrorCode::io, "cannot start {}: {}; check the limits of the system (ulimit -a)",
             command.front(), std::strerror(error));
    }
    ::setpgid(pid_, pid_);  // here too, so that the group exists when this returns
    ::fcntl(from_, F_SETFL, O_NONBLOCK);
}

ChildProcess::~ChildProcess() {
    if (!status_) {
        end_group();
        ::waitpid(pid_, nullptr, 0);
    }
    ::close(from_);
}

void ChildProcess::end_group() {
    ::kill(-pid_, SIGKILL);
}

double ChildProcess::cpu_seconds() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return 0;
    // After the name in parentheses, which may hold anything: the state, 10 numbers, utime, stime.
    std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// Returns false at the end of what the process prints.
bool ChildProcess::read_output() {
    constexpr std::size_t kMost = 1 << 16;
    std::array<char, 4096> block{};
    for (;;) {
        const ssize_t n = ::read(from_, block.data(), block.size());
        if (n == 0) return false;
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        output_.append(block.data(), static_cast<std::size_t>(n));
        n_printed_ += static_cast<std::size_t>(n);
        if (output_.size() > kMost) output_.erase(0, output_.size() - kMost);
    }
}

std::optional<int> ChildProcess::wait_for(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    bool open = true;
    while (!status_) {
        open = open && read_output();
        // The group is ended while its leader is still a zombie, so that no other group can have its number.
        siginfo_t ended{};
        if (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            ended.si_pid == pid_) {
            end_group();
            int status = 0;
            ::waitpid(pid_, &status, 0);
            status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            if (open) read_output();
            break;
        }
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        if (left.count() <= 0) break;
        // The end of a process does not always close the pipe, so it is asked for every few milliseconds.
        constexpr std::chrono::milliseconds kShort{10};
        pollfd poll{from_, POLLIN, 0};
        ::poll(&poll, open ? 1 : 0, static_cast<int>(std::min(left, kShort).count()));
    }
    return status_;
}

}  // namespace keyhole
