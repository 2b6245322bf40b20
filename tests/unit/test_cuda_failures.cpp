// A device that fails at any call of any operation: the reason arrives as an Error and all memory is
// released. Where only memory was short, the run continues with unchanged results.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/base/error.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>

namespace reference::test_cuda_failures {
namespace {

using keyhole::Error;
using keyhole::ErrorCode;

/// A run that covers everything that allocates memory: a prompt, growing and evicting lanes, a fork, changed
/// policies, and a token evicted by the user.
class Scenario {
  public:
    explicit Scenario(std::shared_ptr<const keyhole::Model> model) : model_(std::move(model)) {}

    void start(const std::shared_ptr<keyhole::cuda::Executor>& executor) {
        lanes_.clear();
        backend_.reset();
        backend_ = make_cuda_backend(model_, executor);
        for (const char* spec :
             {"full:shadow=on", "keyformer:budget=9,noise=gaussian", "h2o:budget=8,scope=layer"})
            add(backend_->make_cache(policy(spec)));
        std::vector<keyhole::LanePrefill> prompt;
        for (Lane& lane : lanes_) prompt.push_back({lane.cache.get(), {}, &lane.out});
        backend_->prefill(std::vector<int>(12, 65), prompt, nullptr, {});
        row_ = 12;
    }
    /// Number of parts. They run in order; a part that fails for lack of memory is repeated.
    static constexpr int kParts = 9;
    void part(int i) {
        if (i == 2) return add(lanes_[1].cache->clone());
        if (i == 4) return change(1, "h2o:budget=5");
        if (i == 5) return change(2, "keyformer:budget=8,seed=3");
        if (i == 6) {
            lanes_[0].cache->evict(1, 3);
            return;
        }
        if (i == 7) return change(0, "tova:budget=6");
        std::vector<keyhole::LaneStep> steps;
        for (Lane& lane : lanes_) steps.push_back({lane.cache.get(), 70 + i, row_, {}, &lane.out});
        backend_->step(steps);
        ++row_;
        for (const Lane& lane : lanes_) logits.push_back(lane.out.next_logits);
    }
    std::vector<std::vector<float>> logits;

  private:
    struct Lane {
        std::unique_ptr<keyhole::KvCache> cache;
        keyhole::RowOutput out;
    };
    void add(std::unique_ptr<keyhole::KvCache> cache) { lanes_.push_back({std::move(cache), {}}); }
    void change(std::size_t lane, const std::string& spec) {
        backend_->apply_policy(*lanes_[lane].cache, policy(spec), row_ - 1);
    }
    keyhole::ResolvedPolicy policy(const std::string& spec) const {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 12, 20);
    }

    std::shared_ptr<const keyhole::Model> model_;
    std::unique_ptr<keyhole::Backend> backend_;
    std::vector<Lane> lanes_;
    int row_ = 0;
};

class CudaFailures : public ::testing::Test {
  protected:
    static constexpr TinyShape shape() {
        TinyShape s;
        s.n_layers = 1;
        return s;
    }
    TinyModel folder_{shape()};
    std::shared_ptr<const keyhole::Model> model_ = keyhole::load_model(folder_.folder());
};

TEST_F(CudaFailures, ARunThatLacksMemoryGoesOnWhenThereIsSome) {
    const auto whole = std::make_shared<FailingExecutor>();
    Scenario undisturbed(model_);
    undisturbed.start(whole);
    for (int i = 0; i < Scenario::kParts; ++i) undisturbed.part(i);
    ASSERT_GT(whole->n_allocations, 100);
    std::set<int> failed_parts;
    for (int n = 1; n <= whole->n_allocations; n += 1 + n / 50) {
        SCOPED_TRACE(n);
        const auto executor = std::make_shared<FailingExecutor>(FailingExecutor::Fails{.allocation = n});
        {
            Scenario run(model_);
            int n_errors = 0;
            for (int i = -1; i < Scenario::kParts;) try {
                    if (i < 0)
                        run.start(executor);
                    else
                        run.part(i);
                    ++i;
                } catch (const Error& error) {
                    ASSERT_EQ(error.code(), ErrorCode::no_memory) << error.what();
                    ASSERT_LT(++n_errors, 2);
                    failed_parts.insert(i);
                }
            // A cache that could not shrink does not fail the run.
            ASSERT_EQ(run.logits, undisturbed.logits);
        }
        EXPECT_EQ(executor->n_live, 0);
    }
    EXPECT_TRUE(failed_parts.contains(-1));
    EXPECT_GE(failed_parts.size(), 4u);
}

TEST_F(CudaFailures, APolicyThatFindsNoRoomChangesNothing) {
    const auto resolved = [](const char* spec) {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 12, 20);
    };
    const keyhole::ResolvedPolicy before = resolved("h2o:budget=8"),
                                  after = resolved("tova:budget=5,scope=layer");
    const auto executor = std::make_shared<FailingExecutor>();
    const auto backend = make_cuda_backend(model_, executor);
    const auto cache = backend->make_cache(before);
    keyhole::RowOutput out;
    backend->prefill(std::vector<int>(12, 65), std::vector<keyhole::LanePrefill>{{cache.get(), {}, &out}},
                     nullptr, {});
    int n_refused = 0;
    for (bool refused = true; refused; ++n_refused) {
        SCOPED_TRACE(n_refused);
        ASSERT_LT(n_refused, 100);
        const std::vector<std::int32_t> stored = cache->stored_positions(0);
        executor->fails = {.allocation = executor->n_allocations + 1 + n_refused, .lasts = true};
        std::vector<keyhole::Eviction> evicted;
        refused = false;
        try {
            evicted = backend->apply_policy(*cache, after, 11);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::no_memory) << error.what();
            refused = true;
        }
        executor->fails = {};
        EXPECT_EQ(cache->policy() == (refused ? before : after), true);
        EXPECT_EQ(evicted.empty(), refused);
        EXPECT_EQ(cache->stored_positions(0) == stored, refused);
    }
    EXPECT_GT(n_refused, 3);
}

/// Tokens that a command evicts leave in place: a second store would double a cache's memory for a moment.
TEST_F(CudaFailures, AnEvictionOnRequestTakesNoSecondStore) {
    const auto executor = std::make_shared<FailingExecutor>();
    const auto backend = make_cuda_backend(model_, executor);
    const auto resolved = [](const char* spec) {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 300, 20);
    };
    const auto cache = backend->make_cache(resolved("full"));
    keyhole::RowOutput out;
    const std::vector<keyhole::LanePrefill> lane = {{cache.get(), {}, &out}};
    backend->prefill(std::vector<int>(300, 65), lane, nullptr, {});
    const auto store = static_cast<std::size_t>(cache->use().allocated_bytes);
    executor->largest_allocation = 0;
    EXPECT_TRUE(cache->evict(1, 3));
    EXPECT_TRUE(cache->set_pinned(0, 7, true));
    EXPECT_TRUE(cache->evict(0, 299));
    EXPECT_FALSE(cache->evict(1, 3));
    EXPECT_LT(executor->largest_allocation, store / 10);
    EXPECT_EQ(cache->stored_positions(1).size(), 299u);
    EXPECT_EQ(cache->stored_positions(0).back(), 298);
    EXPECT_EQ(cache->pinned_positions(0), (std::vector<std::int32_t>{7}));
}

/// Covers a session: all outputs of rows and prompts, shadows, lanes with other K and V, forks, rewinds. On a
/// device initcheck would report each such copy.
TEST(CudaMemory, NothingIsCopiedThatNobodyWrote) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel folder(shape);
    const auto model = keyhole::load_model(folder.folder());
    const auto executor = std::make_shared<FailingExecutor>();
    const auto backend = keyhole::make_cuda_backend(model, executor);
    keyhole::RunSpec spec =
        run_spec(random_text(40, 9),
                 {"full:shadow=on", "h2o:budget=12,scope=layer", "keyformer:budget=12,kv=mqa,shadow=on",
                  "keyformer:budget=9,every=4", "a2sf:budget=9,scope=shared,kv=(mlkv:m=2,g=2)",
                  "tova:budget=9,positions=cache,kv=(mlkv:m=1,g=1),merge=released"},
                 40);
    spec.requested = {true, true, true, true, true};
    spec.ignore_eos = true;
    keyhole::Session session(model, *backend, spec, nullptr, std::size_t{64} << 20);
    const auto steps = [&](int n) {
        for (int i = 0; i < n; ++i) session.step();
    };
    session.prefill();
    EXPECT_EQ(executor->n_unwritten, 0) << "prompt";
    steps(6);
    EXPECT_EQ(executor->n_unwritten, 0) << "rows";
    for (const char* command : {"fork 1 h2o:budget=6", "pin 2 48", "evict 0 5", "lane 3 h2o:budget=5",
                                "lane 1 tova:budget=8", "rewind 45"}) {
        session.apply(keyhole::parse_command(command));
        steps(3);
        EXPECT_EQ(executor->n_unwritten, 0) << command;
    }
    EXPECT_GT(executor->n_copies, 500);
}

TEST_F(CudaFailures, AnyOtherFailureComesOutWithItsReasonAndLeavesNoMemory) {
    const auto whole = std::make_shared<FailingExecutor>();
    {
        Scenario run(model_);
        run.start(whole);
        for (int i = 0; i < Scenario::kParts; ++i) run.part(i);
    }
    using Fails = FailingExecutor::Fails;
    struct Kind {
        int Fails::*which;
        int n_calls;
        const char* reason;
    };
    for (const Kind& kind :
         {Kind{&Fails::launch, whole->n_launches, "a launch"}, Kind{&Fails::copy, whole->n_copies, "a copy"},
          Kind{&Fails::wait, whole->n_waits, "an illegal address"}})
        for (int n = 1; n <= kind.n_calls; n += 1 + n / 10) {
            SCOPED_TRACE(std::string(kind.reason) + " " + std::to_string(n));
            Fails fails;
            fails.*kind.which = n;
            const auto executor = std::make_shared<FailingExecutor>(fails);
            std::optional<Error> seen;
            try {
                Scenario run(model_);
                run.start(executor);
                for (int i = 0; i < Scenario::kParts; ++i) run.part(i);
            } catch (const Error& error) {
                seen = error;
            }
            ASSERT_TRUE(seen);
            EXPECT_EQ(seen->code(), ErrorCode::device);
            EXPECT_NE(std::string(seen->what()).find(kind.reason), std::string::npos) << seen->what();
            EXPECT_EQ(executor->n_live, 0);
        }
}

}  // namespace
}  // namespace reference::test_cuda_failures
