/// Runs another program beside Keyhole, without a shell. One thread; knows no format.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// Returns where a program lies in the folders of $PATH, as a shell finds it; nullopt: nowhere.
std::optional<std::filesystem::path> find_program(std::string_view name);

/// Returns the program keyhole: the one that runs, or the one beside it.
std::filesystem::path keyhole_program();

/// A running program in a process group of its own, so that Ctrl-C in the terminal does not reach it. It
/// reads nothing (/dev/null). It ends with this object, and with the thread that made it.
class ChildProcess {
  public:
    /// command: the program, by its path, and its arguments. environment: variables that it gets besides
    /// Keyhole's own. A program that cannot run ends with status 127. Throws Error(io) if the system starts
    /// no process.
    ChildProcess(const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& environment);
    /// Ends the process and all others of its group.
    ~ChildProcess();
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    /// Waits at most this long for the end. Returns the exit status, or 128 and the signal that ended it;
    /// nullopt: it still runs.
    std::optional<int> wait_for(std::chrono::milliseconds time);
    /// Returns the end of what it has printed to stdout and stderr, at most 64 KB.
    const std::string& output() const { return output_; }
    /// Returns how many bytes it has printed in all.
    std::size_t n_printed() const { return n_printed_; }
    /// Returns the processor time that it has taken; 0 where the system does not say.
    double cpu_seconds() const;

  private:
    bool read_output();
    void end_group();

    pid_t pid_ = -1;
    int from_ = -1;
    std::optional<int> status_;
    std::string output_;
    std::size_t n_printed_ = 0;
};

}  // namespace keyhole
