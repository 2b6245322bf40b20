#include "engine/base/threads.h"

#include "engine/base/index.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
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

constexpr std::size_t kMostParts = 16;  // of a job: each costs the publisher a store
constexpr int kSpins = 400;             // about 10 us: most waits inside a step end here
constexpr int kYields = 200;            // then yield to other processes between looks, and at last sleep

// Kernels keep no large arrays on the stack. With the usual 8 MiB a few hundred threads would fill the
// address space that `ulimit -v` leaves.
constexpr std::size_t kStackBytes = std::size_t{1} << 20;

/// Returns how many stacks take a quarter of the address space that is left: the rest is for weights, caches
/// and the libraries, some of which do not survive a refused mapping.
std::int64_t most_stacks() {
    struct rlimit limit {};
    if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return std::numeric_limits<std::int64_t>::max();
    std::int64_t n_pages = 0;
    std::ifstream("/proc/self/statm") >> n_pages;
    const std::int64_t left = static_cast<std::int64_t>(limit.rlim_cur) - n_pages * ::sysconf(_SC_PAGESIZE);
    return std::max<std::int64_t>(0, left / 4) / static_cast<std::int64_t>(kStackBytes);
}

// Chunks, in parts that follow each other. A thread takes the chunks of its own part in order: their memory
// mostly follows too, and has been fetched ahead. Then it takes what is left of other parts. A job is
// published by one store of each part's `ticket` = (generation << 32 | next chunk of the part). A thread
// takes a chunk by compare-and-swap on it. A swap that succeeds proves that the job it read (body, count) is
// still running, since a job ends only when all its chunks have ended.
// A thread that waits long for the others sleeps: one of them has been interrupted by another process, and
// the scheduler moves it only to a processor that is idle.
struct Job {
    using Body = std::function<void(std::int64_t, int)>;

    struct alignas(64) Part {
        std::atomic<std::uint64_t> ticket{0};
    };

    std::vector<Part> parts = std::vector<Part>(1);
    std::uint64_t generation = 0;  // the publisher's
    std::atomic<std::uint32_t> n_chunks{0};
    std::atomic<const Body*> body{nullptr};
    std::atomic<std::uint32_t> n_done{0};
    std::atomic<bool> sleeps{false};       // the thread that published it
    std::atomic<std::uint32_t> events{0};  // it sleeps until this changes

    /// The first of n chunks that part p has, or where the last part ends.
    std::uint64_t first_of(std::size_t p, std::uint32_t n) const { return p * n / parts.size(); }

    void publish(const Body& what, std::int64_t n) {
        // A thread that is late for the last job reads n_chunks 0 and leaves, until the new tickets are
        // published.
        n_chunks.store(0, std::memory_order_release);
        ++generation;
        for (Part& part : parts) part.ticket.store(generation << 32, std::memory_order_release);
        body.store(&what, std::memory_order_release);
        n_done.store(0, std::memory_order_release);
        n_chunks.store(static_cast<std::uint32_t>(n), std::memory_order_release);
    }

    /// Takes chunks until none is left.
    template <class Run>
    void work(int worker, Run run) {
        std::uint32_t n_taken = 0;
        for (std::size_t i = 0; i < parts.size(); ++i)
            n_taken += take((to_index(worker) + i) % parts.size(), worker, run);
        if (n_taken == 0) return;
        // All at once: the job cannot end before.
        n_done.fetch_add(n_taken, std::memory_order_seq_cst);
        if (is_done()) wake_publisher();
    }

    /// Takes chunks of part p until it has none. Returns how many.
    template <class Run>
    std::uint32_t take(std::size_t p, int worker, const Run& run) {
        std::uint32_t n_taken = 0;
        std::atomic<std::uint64_t>& ticket = parts[p].ticket;
        std::uint64_t seen = ticket.load(std::memory_order_acquire);
        for (;;) {
            const std::uint32_t n = n_chunks.load(std::memory_order_acquire);
            const std::uint64_t chunk = first_of(p, n) + static_cast<std::uint32_t>(seen);
            if (chunk >= first_of(p + 1, n)) return n_taken;
            const Body* what =
                body.load(std::memory_order_acquire);  // after n_chunks, which is published last
            if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                              std::memory_order_acquire))
                continue;
            run(*what, static_cast<std::int64_t>(chunk), worker);
            ++n_taken;
            seen = ticket.load(std::memory_order_acquire);
        }
    }

    void wake_publisher() {
        if (!sleeps.load(std::memory_order_seq_cst)) return;
        events.fetch_add(1, std::memory_order_seq_cst);
        events.notify_one();
    }

    /// Waits until all chunks have ended. The publisher calls help() between looks, and does not sleep while
    /// may_help().
    template <class Help, class MayHelp>
    void wait(Help help, MayHelp may_help) {
        for (int i = 0; !is_done(); ++i) {
            help();
            if (i < kSpins) {
                pause_cpu();
            } else if (i < kSpins + kYields) {
                std::this_thread::yield();
            } else {
                sleeps.store(true, std::memory_order_seq_cst);
                const std::uint32_t seen = events.load(std::memory_order_seq_cst);
                if (is_done() || may_help())
                    std::this_thread::yield();
                else
                    events.wait(seen, std::memory_order_seq_cst);
                sleeps.store(false, std::memory_order_seq_cst);
            }
        }
    }

    bool has_chunks() const {
        const std::uint32_t n = n_chunks.load(std::memory_order_acquire);
        for (std::size_t p = 0; p < parts.size(); ++p) {
            const std::uint32_t next =
                static_cast<std::uint32_t>(parts[p].ticket.load(std::memory_order_acquire));
            if (first_of(p, n) + next < first_of(p + 1, n)) return true;
        }
        return false;
    }
    bool is_done() const {
        return n_done.load(std::memory_order_seq_cst) >= n_chunks.load(std::memory_order_acquire);
    }
};

}  // namespace

struct ThreadPool::Impl {
    std::vector<pthread_t> workers;
    Job job;
    std::vector<Job> splits;                   // [threads]: what a worker's chunk is split into
    std::atomic<int> n_splits{0};              // those that are running
    std::atomic<std::uint32_t> generation{0};  // sleeping workers wait on it
    std::atomic<int> n_sleeping{0};
    std::atomic<bool> quit{false};
    std::mutex error_mutex;
    std::exception_ptr error;

    void work(int worker) {
        job.work(worker, [this](const Job::Body& body, std::int64_t chunk, int who) {
            try {
                body(chunk, who);
            } catch (...) {
                const std::lock_guard lock(error_mutex);
                if (!error) error = std::current_exception();
            }
        });
    }

    /// Takes parts of other threads' chunks, if some are split.
    void help(int worker) {
        if (n_splits.load(std::memory_order_acquire) == 0) return;
        for (Job& split : splits) take_parts(split, worker);
    }

    static void take_parts(Job& split, int worker) {
        split.work(worker, [](const Job::Body& body, std::int64_t part, int who) { body(part, who); });
    }

    void worker_loop(int worker) {
        std::uint32_t seen = 0;  // not the current one: a thread that starts late would miss the quit
        for (;;) {
            wait_for_other(seen, worker);
            seen = generation.load(
                std::memory_order_acquire);  // before quit: the last change of it comes after quit
            if (quit.load(std::memory_order_acquire)) return;
            work(worker);
        }
    }

    void wait_for_other(std::uint32_t seen, int worker) {
        for (int i = 0; i < kSpins + kYields; ++i) {
            if (generation.load(std::memory_order_acquire) != seen) return;
            help(worker);
            if (i < kSpins)
                pause_cpu();
            else
                std::this_thread::yield();
        }
        n_sleeping.fetch_add(1, std::memory_order_seq_cst);
        generation.wait(seen, std::memory_order_seq_cst);
        n_sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }

    struct Start {
        Impl* pool;
        int worker;
    };
    static void* run(void* of) noexcept {
        const std::unique_ptr<Start> start(static_cast<Start*>(of));
        start->pool->worker_loop(start->worker);
        return nullptr;
    }

    /// Starts workers until there are n, or the system refuses one.
    void start(std::size_t n) {
        quit.store(false, std::memory_order_release);
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, kStackBytes);
        while (workers.size() < n) {
            auto start = std::make_unique<Start>(Start{this, static_cast<int>(workers.size()) + 1});
            pthread_t thread{};
            if (pthread_create(&thread, &small, &run, start.get()) != 0) break;
            (void)start.release();  // the thread has it
            workers.push_back(thread);
        }
        pthread_attr_destroy(&small);
    }

    void stop() {
        quit.store(true, std::memory_order_release);
        generation.fetch_add(1, std::memory_order_seq_cst);
        generation.notify_all();
        for (const pthread_t thread : workers) pthread_join(thread, nullptr);
        workers.clear();
    }

    void wake() {
        generation.fetch_add(1, std::memory_order_seq_cst);
        if (n_sleeping.load(std::memory_order_seq_cst) > 0) generation.notify_all();
    }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
    if (n_threads <= 0) n_threads = cores_of_process();
    std::size_t n = to_index(std::min<std::int64_t>(n_threads - 1, most_stacks()));
    impl_->workers.reserve(n);
    // If the system starts no more threads (ulimit -u, memory for stacks), those that it started do the work,
    // fewer by a quarter: what comes next needs threads and memory too.
    for (impl_->start(n); impl_->workers.size() < n; impl_->start(n)) {
        n = impl_->workers.size() - (impl_->workers.size() + 3) / 4;
        impl_->stop();
    }
    impl_->job.parts = std::vector<Job::Part>(std::min(n + 1, kMostParts));
    impl_->splits = std::vector<Job>(n + 1);
}

ThreadPool::~ThreadPool() {
    impl_->stop();
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
    pool.job.publish(body, n_chunks);
    pool.wake();
    pool.work(0);
    pool.job.wait([&] { pool.help(0); }, [&] { return pool.n_splits.load(std::memory_order_seq_cst) > 0; });
    if (pool.error) {
        const std::exception_ptr error = std::exchange(pool.error, nullptr);
        std::rethrow_exception(error);
    }
}

bool ThreadPool::can_help() const {
    return !impl_->workers.empty() && !impl_->job.has_chunks();
}

void ThreadPool::split_parts(int worker, std::int64_t n, std::int64_t length,
                             const std::function<void(std::int64_t, std::int64_t)>& range) {
    Impl& pool = *impl_;
    const Job::Body part = [&](std::int64_t i, int) { range(i * length, std::min(n, (i + 1) * length)); };
    Job& split = pool.splits[to_index(worker)];
    split.publish(part, (n + length - 1) / length);
    pool.n_splits.fetch_add(1, std::memory_order_seq_cst);
    pool.job.wake_publisher();
    if (pool.n_sleeping.load(std::memory_order_seq_cst) > 0) pool.wake();
    Impl::take_parts(split, worker);
    split.wait([] {}, [] { return false; });
    pool.n_splits.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace keyhole
