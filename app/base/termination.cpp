#include "app/base/termination.h"

#include "engine/base/error.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace keyhole {

namespace {

constexpr unsigned kSecondsToUnwind = 5;

std::atomic<int> g_guards{0}, g_asked{0};

// Two buffers: a handler reads the one that is not being written.
std::array<std::array<char, 1024>, 2> g_notes{};
std::atomic<unsigned> g_note{0};

const char* signal_name(int signal) {
    return signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
}

void end_now(int signal) {
    clear_progress_line();
    if (*termination_note() != '\0') {
        write_line("keyhole: ended by ");
        write_line(signal_name(signal));
        write_line(": ");
        write_line(termination_note());
        write_line("\n");
    }
    die_by(signal);
}

void on_signal(int signal) {
    if (signal == SIGALRM) end_now(g_asked != 0 ? g_asked.load() : SIGTERM);
    int none = 0;
    if (g_guards > 0 && g_asked.compare_exchange_strong(none, signal)) {
        ::alarm(kSecondsToUnwind);
        return;
    }
    end_now(signal);
}

}  // namespace

void handle_termination_signals() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction before {};
        ::sigaction(signal, nullptr, &before);
        // Signals that nohup or a shell's background job ignores stay ignored.
        if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
    }
    ::sigaction(SIGALRM, &action, nullptr);
}

TerminationGuard::TerminationGuard() {
    ++g_guards;
}

TerminationGuard::~TerminationGuard() {
    --g_guards;
}

bool termination_requested() {
    return g_asked != 0;
}

void check_termination() {
    if (g_asked == 0) return;
    const std::string note = termination_note();
    fail(ErrorCode::cancelled, "ended by {}{}{}", signal_name(g_asked), note.empty() ? "" : ": ", note);
}

void set_termination_note(std::string_view note) noexcept {
    const unsigned next = 1 - g_note;
    std::array<char, 1024>& to = g_notes[next];
    const std::size_t n = std::min(note.size(), to.size() - 1);
    std::memcpy(to.data(), note.data(), n);
    to[n] = '\0';
    g_note = next;
}

KeptNote::~KeptNote() {
    set_termination_note("");
}

const char* termination_note() noexcept {
    return g_notes[g_note].data();
}

void end_by_signal() {
    if (g_asked == 0) return;
    ::alarm(0);
    die_by(g_asked);
}

void write_line(const char* text) noexcept {
    const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
    (void)ignored;
}

void clear_progress_line() noexcept {
    if (::isatty(STDERR_FILENO) != 0) write_line("\r\033[K");
}

void die_by(int signal) noexcept {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    ::raise(signal);
    ::_exit(128 + signal);
}

}  // namespace keyhole
