// One backend for two threads: the engine's run and a job that replays it. Both get the rows that they get
// alone, neither starves, and weights are on the device once.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/shared_backend.h"
#include "engine/session/session.h"
#include "tests/reference/executor_over_host.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace reference::test_shared_backend {
namespace {

/// Fails where two threads are inside at once, as a stream of a device would mix their work.
class OneAtATime final : public ExecutorOverHost {
  public:
    std::atomic<int> n_collisions{0};
    std::int64_t uploaded = 0;
    void upload(void* to, const void* from, std::size_t n) override {
        const Inside inside(*this);
        uploaded += static_cast<std::int64_t>(n);
        ExecutorOverHost::upload(to, from, n);
    }
    void download(void* to, const void* from, std::size_t n) override {
        const Inside inside(*this);
        ExecutorOverHost::download(to, from, n);
    }
    void* allocate(std::size_t n) override {
        const Inside inside(*this);
        return ExecutorOverHost::allocate(n);
    }
    void release(void* data) noexcept override {
        const Inside inside(*this);
        ExecutorOverHost::release(data);
    }

  protected:
    void run_one(const keyhole::cuda::Launch& launch) override {
        const Inside inside(*this);
        ExecutorOverHost::run_one(launch);
    }

  private:
    struct Inside {
        explicit Inside(OneAtATime& of) : of_(of) {
            if (of_.n_inside_.fetch_add(1) > 0) ++of_.n_collisions;
        }
        ~Inside() { --of_.n_inside_; }
        OneAtATime& of_;
    };
    std::atomic<int> n_inside_{0};
};

TEST(SharedBackendThreads, BothGetTheRowsThatTheyGetAlone) {
    const TinyModel folder({});
    const auto model = keyhole::load_model(folder.folder());
    keyhole::RunSpec spec =
        run_spec(random_text(30, 9), {"full:shadow=on", "h2o:budget=9", "tova:budget=9"}, 24);
    spec.ignore_eos = true;
    const auto run = [&](keyhole::Backend& backend, LastRows& rows) {
        keyhole::Session session(model, backend, spec, &rows);
        session.prefill();
        for (int i = 0; i < 8; ++i) session.step();
        session.apply(keyhole::parse_command("fork 1 h2o:budget=6"));
        session.apply(keyhole::parse_command("evict 0 5"));
        for (int i = 0; i < 4; ++i) session.step();
        session.apply(keyhole::parse_command("rewind 34"));
        for (int i = 0; i < 6; ++i) session.step();
    };
    LastRows alone;
    run(*keyhole::make_cuda_backend(model, std::make_shared<OneAtATime>()), alone);
    const auto executor = std::make_shared<OneAtATime>();
    const auto shared = std::make_shared<keyhole::SharedBackend>(keyhole::make_cuda_backend(model, executor));
    EXPECT_TRUE(shared->on_device());
    const std::int64_t of_weights = executor->uploaded;
    LastRows rows[2];
    {
        std::vector<std::jthread> threads;
        for (LastRows& of_thread : rows)
            threads.emplace_back([&, backend = shared] { run(*backend, of_thread); });
    }
    for (const LastRows& of_thread : rows) {
        ASSERT_EQ(of_thread.rows.size(), alone.rows.size());
        for (const auto& [at, kept] : alone.rows)
            EXPECT_EQ(of_thread.rows.at(at), kept) << "row " << at.first << ", lane " << at.second;
    }
    EXPECT_EQ(executor->n_collisions, 0);
    EXPECT_GT(of_weights, 0);
}

TEST(SharedBackendThreads, TurnsGoRound) {
    keyhole::Turns turns;
    turns.take();
    std::vector<int> order;
    std::vector<std::jthread> threads;
    std::atomic<int> n_waiting{0};
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            ++n_waiting;
            turns.take();
            order.push_back(i);
            turns.give_back();
        });
        while (n_waiting <= i || turns.n_waiting() <= i) std::this_thread::yield();
    }
    turns.give_back();
    threads.clear();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(SharedBackendThreads, ACacheOutlivesItsBackend) {
    const TinyModel folder({});
    const auto model = keyhole::load_model(folder.folder());
    auto shared = std::make_unique<keyhole::SharedBackend>(
        keyhole::make_cuda_backend(model, keyhole::cuda::make_host_executor()));
    const auto cache =
        shared->make_cache(keyhole::resolve(keyhole::parse_lane_spec("full").policy, 4, 4), nullptr);
    shared.reset();
    EXPECT_TRUE(cache->clone()->stored_positions(0).empty());
}

}  // namespace
}  // namespace reference::test_shared_backend
