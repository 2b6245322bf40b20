#include "engine/base/index.h"
#include "engine/base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
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
    for (int i = 0; i < 300; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace keyhole::test_threads
