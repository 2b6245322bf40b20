// Copies of a session's state under a byte budget, including models with merged KV heads.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/kv_sharing.h"
#include "engine/session/checkpoints.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

namespace reference::test_checkpoints {
namespace {

using keyhole::Checkpoints;
using keyhole::SessionState;

class CheckpointBytes : public ::testing::Test {
  protected:
    CheckpointBytes()
        : tiny_({.n_layers = kLayers, .n_heads = 4, .n_kv_heads = 4, .head_dim = kHeadDim, .seed = 3}),
          model_(keyhole::load_model(tiny_.folder())) {
        std::string notice;
        backend_ = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    }
    std::shared_ptr<const keyhole::Model> shared(const char* kv) const {
        return keyhole::shared_model(model_, keyhole::parse_lane_spec(std::string("full:kv=") + kv).sharing);
    }
    /// Returns a state with one lane per model, right after a row.
    SessionState state(int row, const std::vector<std::shared_ptr<const keyhole::Model>>& models) const {
        SessionState out;
        out.row = row;
        for (const auto& model : models) {
            keyhole::Lane& lane = out.lanes.emplace_back();
            lane.model = model;
            lane.log_probs.resize(64);
            lane.cache = backend_->make_cache({}, model != model_ ? model : nullptr);
        }
        return out;
    }
    /// Returns the bytes of K and V of n KV heads in every layer, in the type of the weights.
    static std::size_t merged(int n_kv_heads) {
        return std::size_t{kLayers} * 2 * keyhole::to_index(n_kv_heads) * kHeadDim * 4 * kHeadDim *
               sizeof(float);
    }

    static constexpr int kLayers = 2, kHeadDim = 8;
    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::unique_ptr<keyhole::Backend> backend_;
};

TEST_F(CheckpointBytes, AModelThatOnlyStatesKeepCountsOnce) {
    Checkpoints checkpoints(std::size_t{64} << 20, model_.get());
    auto mqa = shared("mqa"), gqa = shared("gqa:2");
    const SessionState plain = state(0, {model_}), merged_lanes = state(16, {model_, mqa, mqa}),
                       both = state(32, {gqa, mqa});
    for (const SessionState* s : {&plain, &merged_lanes, &both}) checkpoints.offer(*s);
    ASSERT_EQ(checkpoints.count(), 3u);
    const std::size_t states = plain.bytes() + merged_lanes.bytes() + both.bytes();
    EXPECT_EQ(checkpoints.bytes(both), states);  // the running session holds them anyway
    EXPECT_EQ(checkpoints.bytes(state(40, {model_, mqa})), states + merged(2));
    EXPECT_EQ(checkpoints.bytes(plain), states + merged(1) + merged(2));
    checkpoints.drop_after(16);
    EXPECT_EQ(checkpoints.bytes(plain), plain.bytes() + merged_lanes.bytes() + merged(1));
    checkpoints.drop_after(0);
    EXPECT_EQ(checkpoints.bytes(plain), plain.bytes());
}

/// On a device the merged weights are in main memory and in device memory.
TEST_F(CheckpointBytes, AModelOnADeviceCountsThereToo) {
    backend_ = keyhole::make_cuda_backend(model_, keyhole::cuda::make_host_executor());
    Checkpoints checkpoints(std::size_t{64} << 20, model_.get());
    const auto mqa = shared("mqa"), gqa = shared("gqa:2");
    const SessionState plain = state(0, {model_}), merged_lanes = state(16, {mqa, mqa}),
                       other = state(32, {gqa});
    for (const SessionState* s : {&plain, &merged_lanes, &other}) checkpoints.offer(*s);
    ASSERT_EQ(checkpoints.count(), 3u);
    const std::size_t states = plain.bytes() + merged_lanes.bytes() + other.bytes();
    EXPECT_EQ(checkpoints.bytes(plain), states + 2 * (merged(1) + merged(2)));
    EXPECT_EQ(checkpoints.bytes(other), states + 2 * merged(1));
}

TEST_F(CheckpointBytes, ModelsBeyondHalfTheBudgetGoWithTheirStates) {
    const std::size_t budget = merged(1) + merged(2);  // leaves no room for states
    Checkpoints checkpoints(budget, model_.get());
    std::weak_ptr<const keyhole::Model> large, small;
    {
        const auto gqa = shared("gqa:2"), mqa = shared("mqa");
        large = gqa;
        small = mqa;
        checkpoints.offer(state(0, {model_}));
        checkpoints.offer(state(16, {gqa}));
        checkpoints.offer(state(32, {mqa}));
        ASSERT_EQ(checkpoints.count(), 3u);
    }
    EXPECT_FALSE(large.expired());
    const SessionState plain = state(48, {model_});
    checkpoints.offer(plain);
    EXPECT_EQ(checkpoints.count(), 3u);
    EXPECT_LE(checkpoints.bytes(plain), budget);
    EXPECT_EQ(checkpoints.latest(20)->row, 0);
    EXPECT_EQ(checkpoints.latest(40)->row, 32);
    EXPECT_TRUE(large.expired());
    EXPECT_FALSE(small.expired());
}

/// Models that only a dropped state holds are freed with the next row, even when that row's state is too
/// large or comes too soon to be kept.
TEST_F(CheckpointBytes, ModelsGoThoughNoStateIsKept) {
    const std::size_t budget = merged(2);
    for (const bool too_large : {true, false}) {
        Checkpoints checkpoints(budget, model_.get());
        std::weak_ptr<const keyhole::Model> left;
        {
            const auto gqa = shared("gqa:2");
            left = gqa;
            checkpoints.offer(state(0, {gqa}));
            ASSERT_EQ(checkpoints.count(), 1u);
        }
        EXPECT_FALSE(left.expired());
        SessionState plain = state(too_large ? 16 : 1, {model_});
        if (too_large) plain.lanes[0].log_probs.resize(budget);
        ASSERT_EQ(plain.bytes() > budget / 4, too_large);
        checkpoints.offer(plain);
        EXPECT_TRUE(left.expired()) << too_large;
        EXPECT_EQ(checkpoints.count(), 0u);
    }
}

/// A state's size includes its shadows.
TEST_F(CheckpointBytes, ShadowsCount) {
    SessionState plain = state(0, {model_}), shadowed = state(0, {model_});
    const auto policy = [](const char* spec) {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 3, 0);
    };
    const auto decode = [&](SessionState& to, const keyhole::ResolvedPolicy& resolved) {
        backend_->apply_policy(*to.lanes[0].cache, resolved, -1);
        for (int row = 0; row < 40; ++row)
            backend_->step(
                std::vector{keyhole::LaneStep{to.lanes[0].cache.get(), 5, row, {}, &to.lanes[0].out}});
    };
    decode(plain, policy("window:budget=4,prefill=stepwise"));
    decode(shadowed, policy("window:budget=4,prefill=stepwise,shadow=on"));
    const std::size_t of_shadow = std::size_t{40} * 2 * kLayers * 4 * kHeadDim * sizeof(float);
    EXPECT_GE(shadowed.bytes(), plain.bytes() + of_shadow);
    Checkpoints checkpoints(4 * plain.bytes() + of_shadow, model_.get());
    checkpoints.offer(plain);
    EXPECT_EQ(checkpoints.count(), 1u);
    shadowed.row = 1000;
    checkpoints.offer(shadowed);
    EXPECT_EQ(checkpoints.count(), 1u) << "more than a quarter of the budget";
}

/// A model larger than the whole budget is not kept, and thinning ends.
TEST_F(CheckpointBytes, AModelLargerThanTheBudgetIsNotKept) {
    const std::size_t budget = 16 * state(0, {model_}).bytes();
    ASSERT_LT(budget, merged(2));
    Checkpoints checkpoints(budget, model_.get());
    for (int i = 0; i < 100; ++i) {
        const SessionState now = state(16 * i, {i == 0 ? shared("gqa:2") : model_});
        checkpoints.offer(now);
        EXPECT_LE(checkpoints.bytes(now), budget) << i;
    }
    EXPECT_GE(checkpoints.count(), 2u);
    EXPECT_GT(checkpoints.latest(1600)->row, 1000);
    EXPECT_EQ(checkpoints.latest(0), nullptr);
}

}  // namespace
}  // namespace reference::test_checkpoints
