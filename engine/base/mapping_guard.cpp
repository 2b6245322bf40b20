#include "engine/base/mapping_guard.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace keyhole {
namespace {

/// An entry of a list that only grows, since the handler walks it without a lock. Free entries are reused.
struct Guarded {
    std::atomic<std::uintptr_t> begin{0};  // 0: free
    std::atomic<std::size_t> n_bytes{0};   // whole pages
    std::atomic<bool> lost{false};         // the handler mapped zeros there
    std::atomic<bool> has_others{false};   // pages that are not the file's
    Guarded* next = nullptr;
    // Guarded by the mutex.
    std::filesystem::path path;
    int descriptor = -1;
    struct stat status {};
};

std::mutex mutex;
std::atomic<Guarded*> first{nullptr};
std::size_t page_bytes = 0;
struct sigaction previous {};

Guarded* find(std::uintptr_t address) {
    for (Guarded* one = first.load(); one != nullptr; one = one->next) {
        const std::uintptr_t begin = one->begin.load();
        if (begin != 0 && address >= begin && address - begin < one->n_bytes.load()) return one;
    }
    return nullptr;
}

/// Async-signal-safe: atomics and two system calls.
void on_bus_error(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    if (Guarded* one = info->si_code > 0 ? find(address) : nullptr; one != nullptr) {
        const std::uintptr_t page = address / page_bytes * page_bytes;
        void* const zeros =
            ::mmap(reinterpret_cast<void*>(page), one->begin.load() + one->n_bytes.load() - page, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (zeros != MAP_FAILED) {
            one->lost.store(true);
            errno = error;
            return;
        }
    }
    errno = error;
    if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
    // Restore the previous action, as if there were no handler: a failed read fails again, and a sent
    // signal is sent again.
    ::sigaction(signal, &previous, nullptr);
    if (info->si_code <= 0) ::raise(signal);
}

void install_handler() {
    static std::once_flag once;
    std::call_once(once, [] {
        page_bytes = to_index(::sysconf(_SC_PAGESIZE));
        struct sigaction action {};
        action.sa_sigaction = on_bus_error;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        ::sigemptyset(&action.sa_mask);
        ::sigaction(SIGBUS, &action, &previous);
    });
}

}  // namespace

void guard_mapping(const std::filesystem::path& path, int descriptor, const void* data, std::size_t n_bytes) {
    install_handler();
    const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    struct stat status {};
    if (own < 0 || ::fstat(own, &status) != 0) {
        const int error = errno;
        if (own >= 0) ::close(own);
        fail(ErrorCode::bad_file, "cannot read {}: {}; check the path and its permissions", path.string(),
             std::strerror(error));
    }
    const std::scoped_lock lock(mutex);
    Guarded* one = first.load();
    while (one != nullptr && one->begin.load() != 0) one = one->next;
    if (one == nullptr) {
        one = new Guarded;  // never freed: the handler may read it
        one->next = first.load();
        first.store(one);
    }
    one->path = path;
    one->descriptor = own;
    one->status = status;
    one->lost.store(false);
    one->has_others.store(false);
    one->n_bytes.store((n_bytes + page_bytes - 1) / page_bytes * page_bytes);
    one->begin.store(reinterpret_cast<std::uintptr_t>(data));
}

void release_mapping(const void* data) noexcept {
    const std::scoped_lock lock(mutex);
    Guarded* const one = find(reinterpret_cast<std::uintptr_t>(data));
    if (one == nullptr) return;
    one->begin.store(0);
    ::close(one->descriptor);
}

const void* mapping_of(const void* address) {
    Guarded* const one = find(reinterpret_cast<std::uintptr_t>(address));
    return one == nullptr ? nullptr : reinterpret_cast<const void*>(one->begin.load());
}

void give_back_mapped(std::span<const std::byte> memory) noexcept {
    const std::scoped_lock lock(mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    const Guarded* const one = find(begin);
    if (one == nullptr || one->has_others.load()) return;
    const std::uintptr_t page = (begin + page_bytes - 1) / page_bytes * page_bytes,
                         end = (begin + memory.size()) / page_bytes * page_bytes;
    if (end > page) ::madvise(reinterpret_cast<void*>(page), end - page, MADV_DONTNEED);
}

void keep_mapped(const void* address) noexcept {
    Guarded* const one = find(reinterpret_cast<std::uintptr_t>(address));
    if (one != nullptr) one->has_others.store(true);
}

void check_mapping(const void* data) {
    const std::scoped_lock lock(mutex);
    const Guarded* const one = find(reinterpret_cast<std::uintptr_t>(data));
    if (one == nullptr) return;
    struct stat now {};
    const bool asked = ::fstat(one->descriptor, &now) == 0;
    if (one->lost.load() || (asked && now.st_size < one->status.st_size)) {
        fail(ErrorCode::bad_file,
             "cannot use {} any more: it was cut to {} of {} bytes while it was in use; restore the file and "
             "load it again",
             one->path.string(), now.st_size, one->status.st_size);
    }
    const timespec &then = one->status.st_mtim, &last = now.st_mtim;
    if (asked &&
        (now.st_size != one->status.st_size || last.tv_sec != then.tv_sec || last.tv_nsec != then.tv_nsec)) {
        fail(ErrorCode::bad_file,
             "cannot use {} any more: it was written to while it was in use; load it again",
             one->path.string());
    }
}

}  // namespace keyhole
