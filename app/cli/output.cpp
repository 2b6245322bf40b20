#include "app/cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace keyhole {

namespace {

std::atomic<int> g_lost{0};  // errno of the first failed write of results

void lost(int error) {
    int none = 0;
    g_lost.compare_exchange_strong(none, error != 0 ? error : EIO);
}

std::atomic<bool> g_has_bar{false};

void remove_bar() {
    if (g_has_bar.exchange(false)) (void)std::fputs("\r\033[K", stderr);
}

}  // namespace

void write_output(std::string_view text) noexcept {
    remove_bar();
    errno = 0;
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) lost(errno);
}

void flush_output() noexcept {
    errno = 0;
    if (std::fflush(stdout) != 0) lost(errno);
}

void show_bar(std::string_view text) noexcept {
    remove_bar();
    (void)std::fwrite(text.data(), 1, text.size(), stderr);
    (void)std::fflush(stderr);
    g_has_bar = !text.empty();
}

void write_note(std::string_view text) noexcept {
    remove_bar();
    (void)std::fwrite(text.data(), 1, text.size(), stderr);
    (void)std::fflush(stderr);
}

void begin_output() {
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(number, F_GETFD) != -1 || errno != EBADF) continue;
        // open() returns the lowest free number. stdout is opened for reading, so writing to it fails as on
        // a closed one.
        const int file = ::open("/dev/null", number == STDERR_FILENO ? O_RDWR : O_RDONLY);
        if (file != number && file >= 0) ::close(file);
    }
    std::signal(SIGPIPE, SIG_IGN);
}

int end_output(int status) {
    errno = 0;
    if (std::fflush(stdout) != 0) lost(errno);
    std::cout.flush();  // CLI11 prints its help there
    if (!std::cout) lost(errno);
    const int error = g_lost;
    if (error == 0) return status;
    if (error == EPIPE) {
        std::signal(SIGPIPE, SIG_DFL);
        (void)std::raise(SIGPIPE);
    }
    print_note("keyhole: cannot write the output: {}; it is not complete\n", std::strerror(error));
    return status == 0 ? 1 : status;
}

}  // namespace keyhole
