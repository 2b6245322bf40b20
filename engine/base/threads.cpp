#include "engine/base/threads.h"

#include "engine/base/index.h"

#include <sched.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace keyhole {

namespace {

int cores_of_process() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

constexpr int kSpins = 400;   // about 10 us: most waits inside a step end here
constexpr int kYields = 200;  // then yield to other processes between looks

}  // namespace

// A job is published by one store of `ticket` = (generation << 32 | next chunk). A worker takes a chunk by
// compare-and-swap on it. A swap that succeeds proves that the job the worker read (body, count) is still
// running, since a job ends only when all its chunks have ended.
struct ThreadPool::Impl {
    using Body = std::function<void(std::int64_t, int)>;

    std::vector<std::jthread> workers;
    std::atomic<std::uint64_t> ticket{0};
    std::atomic<std::uint32_t> n_chunks{0};
    std::atomic<const Body*> body{nullptr};
    std::atomic<std::uint32_t> n_done{0};
    std::atomic<std::uint32_t> generation{0};  // sleeping workers wait on it
    std::atomic<int> n_sleeping{0};
    std::atomic<bool> quit{false};
    std::mutex error_mutex;
    std::exception_ptr error;

    /// Takes chunks of the running job until none is left.
    void work(int worker) {
        std::uint64_t seen = ticket.load(std::memory_order_acquire);
        for (;;) {
            const std::uint32_t chunk = static_cast<std::uint32_t>(seen);
            if (chunk >= n_chunks.load(std::memory_order_acquire)) return;
            const Body* run =
                body.load(std::memory_order_acquire);  // after n_chunks, which is published last
            if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                              std::memory_order_acquire))
                continue;
            try {
                (*run)(chunk, worker);
            } catch (...) {
                const std::lock_guard lock(error_mutex);
                if (!error) error = std::current_exception();
            }
            n_done.fetch_add(1, std::memory_order_acq_rel);
            seen = ticket.load(std::memory_order_acquire);
        }
    }

    void worker_loop(int worker) {
        std::uint32_t seen = 0;  // not the current one: a thread that starts late would miss the quit
        for (;;) {
            wait_for_other(seen);
            seen = generation.load(
                std::memory_order_acquire);  // before quit: the last change of it comes after quit
            if (quit.load(std::memory_order_acquire)) return;
            work(worker);
        }
    }

    void wait_for_other(std::uint32_t seen) {
        for (int i = 0; i < kSpins; ++i) {
            if (generation.load(std::memory_order_acquire) != seen) return;
            pause_cpu();
        }
        for (int i = 0; i < kYields; ++i) {
            if (generation.load(std::memory_order_acquire) != seen) return;
            std::this_thread::yield();
        }
        n_sleeping.fetch_add(1, std::memory_order_seq_cst);
        generation.wait(seen, std::memory_order_seq_cst);
        n_sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }

    void wake() {
        generation.fetch_add(1, std::memory_order_seq_cst);
        if (n_sleeping.load(std::memory_order_seq_cst) > 0) generation.notify_all();
    }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
    if (n_threads <= 0) n_threads = cores_of_process();
    impl_->workers.reserve(to_index(n_threads - 1));
    try {
        for (int worker = 1; worker < n_threads; ++worker)
            impl_->workers.emplace_back([impl = impl_.get(), worker] { impl->worker_loop(worker); });
    } catch (const std::system_error&) {
        // The system starts no more threads (ulimit -u, memory for stacks): the running ones do the work.
    }
}

ThreadPool::~ThreadPool() {
    impl_->quit.store(true, std::memory_order_release);
    impl_->generation.fetch_add(1, std::memory_order_seq_cst);
    impl_->generation.notify_all();
    impl_->workers.clear();
}

int ThreadPool::n_threads() const {
    return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::parallel_for(std::int64_t n_chunks, const std::function<void(std::int64_t, int)>& body) {
    if (n_chunks <= 0) return;
    if (n_chunks == 1 || impl_->workers.empty()) {
        for (std::int64_t chunk = 0; chunk < n_chunks; ++chunk) body(chunk, 0);
        return;
    }
    Impl& pool = *impl_;
    // A worker that is late for the last job reads n_chunks 0 and leaves, until the new ticket is
    // published.
    pool.n_chunks.store(0, std::memory_order_release);
    const std::uint64_t next = ((pool.ticket.load(std::memory_order_relaxed) >> 32) + 1) << 32;
    pool.ticket.store(next, std::memory_order_release);
    pool.body.store(&body, std::memory_order_release);
    pool.n_done.store(0, std::memory_order_release);
    pool.n_chunks.store(static_cast<std::uint32_t>(n_chunks), std::memory_order_release);
    pool.wake();
    pool.work(0);
    int spins = 0;
    while (pool.n_done.load(std::memory_order_acquire) < static_cast<std::uint32_t>(n_chunks)) {
        if (++spins < kSpins)
            pause_cpu();
        else
            std::this_thread::yield();
    }
    if (pool.error) {
        const std::exception_ptr error = std::exchange(pool.error, nullptr);
        std::rethrow_exception(error);
    }
}

}  // namespace keyhole
