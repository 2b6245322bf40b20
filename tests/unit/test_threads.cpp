#include "engine/base/index.h"
#include "engine/base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

namespace keyhole::test_threads {
namespace {

TEST(Threads, EveryChunkRunsExactlyOnce) {
    for (int n_threads : {1, 2, 5}) {
        ThreadPool pool(n_threads);
        EXPECT_EQ(pool.n_threads(), n_threads);
        for (int round = 0; round < 300; ++round) {
            const int n = round % 37;
            std::vector<std::atomic<int>> runs(to_index(n));
            pool.parallel_for(n, [&](std::int64_t chunk, int worker) {
                ASSERT_GE(worker, 0);
                ASSERT_LT(worker, n_threads);
                runs[to_index(chunk)].fetch_add(1);
            });
            for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
        }
    }
}

// Memory is read in the order of its addresses, and fetched ahead across chunks.
TEST(Threads, EachBeginsWithChunksThatFollowEachOther) {
    constexpr int kChunks = 40;
    ThreadPool pool(2);
    if (pool.n_threads() < 2) GTEST_SKIP() << "no second thread";
    for (int round = 0; round < 50; ++round) {
        std::vector<std::int64_t> taken[2];
        std::atomic<int> n_begun{0};
        pool.parallel_for(kChunks, [&](std::int64_t chunk, int worker) {
            if (taken[worker].empty()) ++n_begun;
            taken[worker].push_back(chunk);
            while (n_begun < 2) std::this_thread::yield();  // so that none takes what is left of the other's
        });
        for (const int worker : {0, 1}) {
            std::vector<std::int64_t>& own = taken[worker];
            EXPECT_EQ(own.front(), worker * kChunks / 2);
            // Those of the other part come last.
            const auto rest = std::ranges::find_if(
                own, [&](std::int64_t chunk) { return chunk / (kChunks / 2) != worker; });
            EXPECT_TRUE(std::is_sorted(own.begin(), rest) && std::is_sorted(rest, own.end()));
        }
        EXPECT_EQ(taken[0].size() + taken[1].size(), to_index(kChunks));
    }
}

// Runs in a child that may start no thread. The child gives up root, to whom the limit does not apply.
TEST(Threads, WhereNoThreadStartsTheCallerDoesTheWork) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(3);
        const rlimit one{1, 1};
        ::setrlimit(RLIMIT_NPROC, &one);
        int n_done = 0;
        {
            ThreadPool pool(64);
            if (pool.n_threads() > 1) ::_exit(3);
            pool.parallel_for(100, [&](std::int64_t, int) { ++n_done; });
        }
        ::_exit(n_done == 100 ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
        GTEST_SKIP() << "threads start here whatever the limit";
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Threads, EveryPartOfASplitChunkRunsOnce) {
    for (const int n_threads : {1, 2, 5}) {
        ThreadPool pool(n_threads);
        for (int round = 0; round < 300; ++round) {
            const int n_chunks = 1 + round % 7;
            constexpr std::int64_t kNumbers = 100;
            std::vector<std::atomic<int>> runs(to_index(n_chunks * kNumbers));
            pool.parallel_for(n_chunks, [&](std::int64_t chunk, int worker) {
                pool.split(worker, kNumbers, 8, [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i)
                        runs[to_index(chunk * kNumbers + i)].fetch_add(1);
                });
                for (std::int64_t i = 0; i < kNumbers; ++i)  // all have ended when split() returns
                    ASSERT_EQ(runs[to_index(chunk * kNumbers + i)].load(), 1);
            });
        }
    }
}

TEST(Threads, ThreadsWithoutAChunkTakePartsOfAnother) {
    ThreadPool pool(2);
    std::atomic<int> n_begun{0};
    std::atomic<bool> met{false};
    pool.parallel_for(2, [&](std::int64_t chunk, int worker) {
        if (chunk == 0) return;
        // A part waits until the other has begun: on another thread.
        for (int tries = 0; tries < 1000 && !met; ++tries) {
            n_begun = 0;
            pool.split(worker, 2, 1, [&](std::int64_t, std::int64_t) {
                ++n_begun;
                const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
                while (n_begun < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
                if (n_begun == 2) met = true;
                --n_begun;
            });
        }
    });
    EXPECT_TRUE(met);
}

// The caller waits for a chunk of another thread until it sleeps; the parts of that chunk wake it.
TEST(Threads, ASleepingCallerWakesUpForPartsAndForTheEnd) {
    ThreadPool pool(2);
    if (pool.n_threads() < 2) GTEST_SKIP() << "no second thread";
    const std::thread::id caller = std::this_thread::get_id();
    for (int i = 0; i < 20; ++i) {
        std::atomic<int> n_taken{0}, n_parts{0}, n_of_caller{0};
        pool.parallel_for(2, [&](std::int64_t, int worker) {
            ++n_taken;
            while (n_taken < 2) std::this_thread::yield();
            if (std::this_thread::get_id() == caller) return;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            pool.split(worker, 40, 1, [&](std::int64_t first, std::int64_t last) {
                n_parts += static_cast<int>(last - first);
                if (std::this_thread::get_id() == caller) ++n_of_caller;
                std::this_thread::sleep_for(std::chrono::microseconds(200));
            });
            std::this_thread::sleep_for(std::chrono::milliseconds(i % 3));
        });
        EXPECT_EQ(n_parts, 40);
        EXPECT_GT(n_of_caller, 0);
    }
}

TEST(Threads, SleepingWorkersWakeUp) {
    ThreadPool pool(3);
    std::atomic<int> total{0};
    for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        pool.parallel_for(50, [&](std::int64_t, int) { total.fetch_add(1); });
    }
    EXPECT_EQ(total.load(), 150);
}

TEST(Threads, AnExceptionReachesTheCallerAndThePoolStaysUsable) {
    ThreadPool pool(2);
    EXPECT_THROW(pool.parallel_for(20,
                                   [](std::int64_t chunk, int) {
                                       if (chunk == 7) throw std::runtime_error("seven");
                                   }),
                 std::runtime_error);
    std::atomic<int> total{0};
    pool.parallel_for(20, [&](std::int64_t, int) { total.fetch_add(1); });
    EXPECT_EQ(total.load(), 20);
}

// Threads that have not started when the pool is destroyed must end too.
TEST(Threads, APoolThatRanNothingEnds) {
    std::atomic<bool> ended{false};
    std::thread watch([&] {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (!ended && std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (ended) return;
        std::fputs("a ThreadPool that ran nothing did not end within a minute\n", stderr);
        std::abort();  // the other thread waits without end
    });
    for (int i = 0; i < 300; ++i) ThreadPool pool(4);
    ended = true;
    watch.join();
}

}  // namespace
}  // namespace keyhole::test_threads
