#include "app/base/crash_report.h"

#include "app/base/termination.h"
#include "app/base/version.h"
#include "engine/base/crash_message.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"

#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <thread>
#include <typeinfo>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

// --- what the handler reads, prepared beforehand, since it may neither allocate nor lock ---

std::array<char, 4096> g_file{};  // path of the report
std::array<char, 4096> g_head{};  // its first lines
bool g_with_text = false;

constexpr std::size_t kActions = 32;
std::array<std::array<char, 160>, kActions> g_actions{};
std::atomic<std::size_t> g_n_actions{0};

std::atomic<bool> g_crashing{false};

template <std::size_t N>
void keep(std::array<char, N>& to, std::string_view text) noexcept {
    const std::size_t n = std::min(text.size(), N - 1);
    std::memcpy(to.data(), text.data(), n);
    to[n] = '\0';
}

// --- the handler ---

/// Writes text and numbers to a file descriptor.
class Lines {
  public:
    explicit Lines(int file) : file_(file) {}
    const Lines& operator<<(const char* text) const {
        const ssize_t ignored = ::write(file_, text, std::strlen(text));
        (void)ignored;
        return *this;
    }
    const Lines& number(std::uintptr_t value, unsigned base) const {
        std::array<char, 24> digits{};
        std::size_t at = digits.size() - 1;
        do {
            digits[--at] = "0123456789abcdef"[value % base];
            value /= base;
        } while (value != 0);
        return *this << digits.data() + at;
    }

  private:
    int file_;
};

const char* fault_name(int signal) {
    switch (signal) {
        case SIGSEGV:
            return "SIGSEGV, an invalid address";
        case SIGBUS:
            return "SIGBUS, memory or a part of a mapped file that does not exist";
        case SIGFPE:
            return "SIGFPE, an arithmetic error";
        case SIGILL:
            return "SIGILL, an instruction that the processor does not know";
        default:
            return "SIGABRT, a check that failed";
    }
}

/// Makes the folders of the report's path.
void make_folders() {
    std::array<char, g_file.size()> folder = g_file;
    for (std::size_t i = 1; folder[i] != '\0'; ++i)
        if (folder[i] == '/') {
            folder[i] = '\0';
            ::mkdir(folder.data(), 0700);
            folder[i] = '/';
        }
}

void write_stack(const Lines& out) {
    std::array<void*, 64> frames{};
    const int n = ::backtrace(frames.data(), static_cast<int>(frames.size()));
    out << "stack (module+offset: addr2line -Cfie MODULE OFFSET):\n";
    for (int i = 0; i < n; ++i) {
        const auto address = reinterpret_cast<std::uintptr_t>(frames[to_index(i)]);
        Dl_info info{};
        out << "  #";
        out.number(static_cast<std::uintptr_t>(i), 10) << " ";
        if (::dladdr(frames[to_index(i)], &info) != 0 && info.dli_fname != nullptr) {
            const char* name = std::strrchr(info.dli_fname, '/');
            out << (g_with_text || name == nullptr ? info.dli_fname : name + 1) << "+0x";
            out.number(address - reinterpret_cast<std::uintptr_t>(info.dli_fbase), 16);
            if (info.dli_sname != nullptr) out << " " << info.dli_sname;
        } else {
            out << "0x";
            out.number(address, 16);
        }
        out << "\n";
    }
}

void write_report(const Lines& out, int signal, const siginfo_t* info) {
    out << g_head.data() << "signal: " << fault_name(signal) << "\n";
    if (info != nullptr && signal != SIGABRT) {
        out << "address: 0x";
        out.number(reinterpret_cast<std::uintptr_t>(info->si_addr), 16) << "\n";
    }
    if (*crash_message() != '\0') out << "message: " << crash_message() << "\n";
    out << "seconds since 1970: ";
    out.number(static_cast<std::uintptr_t>(std::time(nullptr)), 10) << "\nthread: ";
    out.number(static_cast<std::uintptr_t>(::syscall(SYS_gettid)), 10)
        << (::syscall(SYS_gettid) == ::getpid() ? " (the first)\n" : "\n");
    write_stack(out);
    const std::size_t n = g_n_actions;
    if (n > 0) out << "last actions of the window, the newest last:\n";
    for (std::size_t i = n > kActions ? n - kActions : 0; i < n; ++i)
        out << "  " << g_actions[i % kActions].data() << "\n";
}

void on_crash(int signal, siginfo_t* info, void*) {
    if (g_crashing.exchange(true)) {
        // Another thread crashed first and ends the process, or this thread crashed in the handler.
        static thread_local bool again = false;
        if (!again) {
            again = true;
            for (int i = 0; i < 50; ++i) ::usleep(100'000);
        }
        die_by(signal);
    }
    clear_progress_line();
    int file = -1;
    if (g_file[0] != '\0') {
        make_folders();
        file = ::open(g_file.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }
    write_report(Lines(file >= 0 ? file : STDERR_FILENO), signal, info);
    const Lines terminal(STDERR_FILENO);
    terminal << "keyhole: crashed (" << fault_name(signal) << ")";
    if (file >= 0) {
        ::fsync(file);
        ::close(file);
        terminal << "; what helps to find out why is in " << g_file.data();
        if (!g_with_text) terminal << ", without any text of yours";
    }
    terminal << "\n";
    if (*termination_note() != '\0') terminal << "keyhole: " << termination_note() << "\n";
    die_by(signal);
}

[[noreturn]] void on_terminate() {
    if (const std::exception_ptr error = std::current_exception()) {
        try {
            std::rethrow_exception(error);
        } catch (const std::exception& known) {
            set_crash_message(g_with_text ? fmt::format("uncaught {}: {}", typeid(known).name(), known.what())
                                          : fmt::format("uncaught {}", typeid(known).name()));
        } catch (...) {
            set_crash_message("an uncaught exception");
        }
    } else {
        set_crash_message("std::terminate");
    }
    std::abort();
}

// --- contents of the report ---

/// Returns the build id, by which debug files and packages name the build.
std::string build_id() {
    std::string id;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* to) {
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const ElfW(Phdr)& part = info->dlpi_phdr[i];
                if (part.p_type != PT_NOTE) continue;
                const char* at = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
                for (const char* end = at + part.p_memsz; at + sizeof(ElfW(Nhdr)) < end;) {
                    const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
                    const char* name = at + sizeof *note;
                    const char* bytes = name + (note->n_namesz + 3) / 4 * 4;
                    if (note->n_type == NT_GNU_BUILD_ID && std::strncmp(name, "GNU", 4) == 0)
                        for (std::size_t b = 0; b < note->n_descsz; ++b)
                            *static_cast<std::string*>(to) +=
                                fmt::format("{:02x}", static_cast<unsigned char>(bytes[b]));
                    at = bytes + (note->n_descsz + 3) / 4 * 4;
                }
            }
            return 1;  // the program comes first
        },
        &id);
    return id.empty() ? "unknown" : id;
}

/// Returns the names of the options, and the values of those that cannot hold text of the user.
std::string command_line(const std::vector<std::string>& arguments) {
    constexpr std::array<std::string_view, 8> kPlain = {"--lane",    "--tokens", "--threads", "--backend",
                                                        "--context", "--seed",   "--export",  "--rows"};
    std::string text;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string& word = arguments[i];
        const bool plain =
            g_with_text || i == 0 ||
            (i > 0 && std::find(kPlain.begin(), kPlain.end(), arguments[i - 1]) != kPlain.end());
        const bool is_option = word.starts_with("--");
        text += " ";
        text += plain ? word : is_option ? word.substr(0, word.find('=')) : "...";
    }
    return text;
}

std::string now_text() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
    return text.data();
}

/// Returns whether the name is one that install_crash_report() makes: others are not counted or removed.
bool is_report(const fs::path& file) {
    constexpr std::string_view kBegin = "crash-", kEnd = ".txt";
    const std::string name = file.filename().string();
    if (name.size() <= kBegin.size() + kEnd.size() || !name.starts_with(kBegin) || !name.ends_with(kEnd))
        return false;
    return std::string_view(name)
               .substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size())
               .find_first_not_of("0123456789-") == std::string_view::npos;
}

}  // namespace

void install_crash_report(const fs::path& folder, const std::vector<std::string>& arguments) {
    const char* with_text = std::getenv("KEYHOLE_CRASH_TEXT");
    g_with_text = with_text != nullptr && std::string_view(with_text) == "1";
    if (!folder.empty())
        keep(g_file, (folder / fmt::format("crash-{}-{}.txt", now_text(), ::getpid())).string());
#ifdef KH_NO_ASSERT
    constexpr const char* kAssertions = "off";
#else
    constexpr const char* kAssertions = "on";
#endif
    keep(g_head, fmt::format("Keyhole {}, build {}, compiler {}, assertions {}\nstarted: {} UTC\n"
                             "command line: keyhole{}\n",
                             program_version(), build_id(), __VERSION__, kAssertions, now_text(),
                             command_line(arguments)));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return;  // a sanitizer prints a better report itself
#endif
    std::array<void*, 2> warm_up{};
    (void)::backtrace(warm_up.data(), static_cast<int>(warm_up.size()));  // loads the unwinder now
    guard_stack();
    struct sigaction action {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(signal, &action, nullptr);
    std::set_terminate(on_terminate);
}

void note_action(std::string_view id, std::string_view arguments, bool arguments_are_plain,
                 bool is_drag) noexcept {
    if (const std::size_t n = g_n_actions; n > 0 && is_drag) {
        const std::string_view before(g_actions[(n - 1) % kActions].data());
        if (before.substr(0, before.find(' ')) == id) --g_n_actions;
    }
    std::array<char, 160>& to = g_actions[g_n_actions % kActions];
    keep(to, id);
    const std::string_view shown = g_with_text || arguments_are_plain ? arguments : "...";
    if (!arguments.empty() && id.size() + 1 < to.size()) {
        to[id.size()] = ' ';
        const std::size_t n = std::min(shown.size(), to.size() - id.size() - 2);
        std::memcpy(to.data() + id.size() + 1, shown.data(), n);
        to[id.size() + 1 + n] = '\0';
    }
    ++g_n_actions;
}

std::vector<fs::path> new_crash_reports(const fs::path& folder) {
    std::vector<fs::path> reports;
    std::error_code error;
    if (folder.empty()) return reports;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
        if (is_report(entry.path())) reports.push_back(entry.path());
    if (reports.empty()) return reports;
    std::sort(reports.begin(), reports.end());  // by date
    constexpr std::size_t kMost = 10;
    for (; reports.size() > kMost; reports.erase(reports.begin())) fs::remove(reports.front(), error);
    const fs::path named = folder / "crashes-named";
    std::string all, known;
    for (const fs::path& report : reports) all += report.filename().string() + "\n";
    try {
        if (fs::exists(named, error)) known = read_text_file(named);
        std::erase_if(reports, [&](const fs::path& report) {
            return known.find(report.filename().string() + "\n") != std::string::npos;
        });
        if (!reports.empty()) write_text_file(named, all);
    } catch (const Error&) {  // they are named again at the next start
    }
    return reports;
}

fs::path crash_report_near(const fs::path& folder, fs::file_time_type time) {
    std::error_code error;
    if (folder.empty()) return {};
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        if (!is_report(entry.path())) continue;
        const fs::file_time_type written = entry.last_write_time(error);
        const auto apart = written > time ? written - time : time - written;
        if (!error && apart < std::chrono::minutes(1)) return entry.path();
    }
    return {};
}

void crash_on_request() {
#ifndef KH_NO_ASSERT
    const char* how = std::getenv("KEYHOLE_CRASH_TEST");
    if (how == nullptr) return;
    const std::string_view word = how;
    if (word == "segv") *reinterpret_cast<volatile int*>(std::strtoul("8", nullptr, 10)) = 1;
    if (word == "bus") ::raise(SIGBUS);
    if (word == "fpe") ::raise(SIGFPE);
    if (word == "ill") ::raise(SIGILL);
    if (word == "abort") std::abort();
    if (word == "assert") assert_failed("a test of the crash report", "crash_report.cpp", 1, "secret");
    if (word == "terminate") std::thread([] { throw Error(ErrorCode::io, "secret"); }).join();
    if (word == "stack") {
        struct Deep {
            static int go(volatile int* above) {
                std::array<volatile int, 1024> room{};
                room[0] = *above;
                return room[0] == 0 ? go(room.data()) + room[1] : 0;  // always 0: the stack ends first
            }
        };
        volatile int begin = 0;
        (void)Deep::go(&begin);
    }
#endif
}

}  // namespace keyhole
