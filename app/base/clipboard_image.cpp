#include "app/base/clipboard_image.h"

#include "engine/base/child_process.h"
#include "engine/base/error.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace keyhole {

namespace {

/// Starts a program in a session of its own, since it stays to serve the clipboard after Keyhole's end. It
/// reads the file. Returns its exit status once its first process ends, or -1 if that takes too long.
int run_detached(const std::vector<std::string>& command, const std::filesystem::path& input) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, input.c_str(), O_RDONLY, 0);
    for (const int to : {1, 2}) posix_spawn_file_actions_addopen(&files, to, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    pid_t pid = -1;
    const int fault = posix_spawn(&pid, arguments.front(), &files, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (fault != 0) fail(ErrorCode::io, "cannot start {}: {}", command.front(), std::strerror(fault));
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::seconds kMost{5};
    for (const Clock::time_point end = Clock::now() + kMost; Clock::now() < end;) {
        int status = 0;
        if (::waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -1;
}

}  // namespace

void copy_image_to_clipboard(const std::filesystem::path& file) {
    const bool wayland = std::getenv("WAYLAND_DISPLAY") != nullptr;
    const char* const name = wayland ? "wl-copy" : "xclip";
    const auto program = find_program(name);
    if (!program)
        fail(ErrorCode::io, "cannot copy a picture: {} is not installed (package {})", name,
             wayland ? "wl-clipboard" : "xclip");
    const std::vector<std::string> command =
        wayland ? std::vector<std::string>{program->string(), "--type", "image/png"}
                : std::vector<std::string>{program->string(), "-selection", "clipboard", "-t", "image/png"};
    const int status = run_detached(command, file);
    if (status != 0)
        fail(ErrorCode::io, "cannot copy a picture: {} {}", name,
             status < 0 ? std::string("does not answer") : fmt::format("ended with status {}", status));
}

}  // namespace keyhole
