// A lane's bits depend neither on other lanes, nor on its place among them, nor on the number of threads.
#include "engine/base/error.h"
#include "engine/device/make_backend.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace reference::test_lanes {
namespace {

const std::vector<std::string> kSpecs = {"full",
                                         "window:budget=10",
                                         "h2o:budget=16",
                                         "tova:budget=5",
                                         "keyformer:budget=20",
                                         "a2sf:budget=16,pool=max",
                                         "dilated:budget=6",
                                         "h2o:budget=16,dialect=released",
                                         "keyformer:budget=20,dialect=released",
                                         "a2sf:budget=9,dialect=released",
                                         "h2o:budget=16,budget@L1=5,recent@L0=2"};

class EngineLanes : public ::testing::Test {
  protected:
    EngineLanes()
        // Large enough that all threads of the pool take part in every step.
        : tiny_({.n_layers = 2,
                 .n_heads = 8,
                 .n_kv_heads = 4,
                 .head_dim = 48,
                 .d_ff = 1024,
                 .dtype = StoredAs::bf16,
                 .seed = 5}),
          model_(keyhole::load_model(tiny_.folder())),
          tokens_(random_tokens(150 + 20, 6)) {}

    LaneRows run(const std::vector<std::string>& specs, int n_threads) const {
        const std::span<const int> all(tokens_);
        return run_engine(model_, specs, all.first(150), all.subspan(150), n_threads);
    }
    static void expect_same(const std::vector<keyhole::RowOutput>& a,
                            const std::vector<keyhole::RowOutput>& b, const std::string& what) {
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t t = 0; t < a.size(); ++t)
            ASSERT_EQ(difference(a[t], b[t]), "") << what << ", decode row " << t;
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::vector<int> tokens_;
};

TEST_F(EngineLanes, PermutedLanesGiveTheSameBits) {
    const LaneRows straight = run(kSpecs, 2);
    std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
    for (int round = 0; round < 3; ++round) {
        std::rotate(order.begin(), order.begin() + 1 + round, order.end());
        std::swap(order[0], order[3]);
        std::vector<std::string> specs;
        for (std::size_t n : order) specs.push_back(kSpecs[n]);
        const LaneRows permuted = run(specs, 2);
        for (std::size_t n = 0; n < order.size(); ++n) expect_same(straight[order[n]], permuted[n], specs[n]);
    }
}

TEST_F(EngineLanes, AloneAndTogetherGiveTheSameBits) {
    const LaneRows together = run(kSpecs, 2);
    for (std::size_t n = 0; n < kSpecs.size(); ++n)
        expect_same(together[n], run({kSpecs[n]}, 2)[0], kSpecs[n]);
}

TEST_F(EngineLanes, EqualLanesStayEqual) {
    const LaneRows rows = run({"h2o:budget=16", "full", "h2o:budget=16"}, 2);
    expect_same(rows[0], rows[2], "h2o");
}

TEST_F(EngineLanes, AnyNumberOfThreadsGivesTheSameBits) {
    const LaneRows one = run(kSpecs, 1);
    for (int n_threads : {2, 3}) {
        if (n_threads == 2 && under_thread_sanitizer()) continue;  // three interleave more
        const LaneRows more = run(kSpecs, n_threads);
        for (std::size_t n = 0; n < kSpecs.size(); ++n) expect_same(one[n], more[n], kSpecs[n]);
    }
}

TEST_F(EngineLanes, WhatIsAskedForDoesNotChangeWhatIsDecoded) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    const std::span<const int> all(tokens_);
    std::vector<std::vector<float>> next[2];
    for (const bool everything : {false, true}) {
        const keyhole::RowRequest requested{everything, everything, everything, everything};
        const auto policy = keyhole::resolve(keyhole::parse_lane_spec("keyformer:budget=20").policy, 150, 20);
        const auto cache = backend->make_cache(policy);
        keyhole::RowOutput out;
        const keyhole::LanePrefill prefill{cache.get(), requested, &out};
        backend->prefill(all.first(150), {&prefill, 1}, nullptr, {});
        next[everything].push_back(out.next_logits);
        for (std::size_t t = 150; t < all.size(); ++t) {
            const keyhole::LaneStep step{cache.get(), all[t], static_cast<int>(t), requested, &out};
            backend->step({&step, 1});
            next[everything].push_back(out.next_logits);
        }
    }
    EXPECT_EQ(next[0], next[1]);
}

TEST_F(EngineLanes, AClonedCacheGoesOnLikeTheOriginal) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    const auto policy = keyhole::resolve(keyhole::parse_lane_spec("h2o:budget=16").policy, 150, 20);
    const std::span<const int> all(tokens_);
    auto cache = backend->make_cache(policy);
    keyhole::RowOutput out, copied;
    const keyhole::LanePrefill prefill{cache.get(), {}, &out};
    backend->prefill(all.first(150), {&prefill, 1}, nullptr, {});
    const auto copy = cache->clone();
    for (std::size_t t = 150; t < all.size(); ++t) {
        const keyhole::RowRequest requested{true, true, true, true};
        const keyhole::LaneStep step{cache.get(), all[t], static_cast<int>(t), requested, &out};
        backend->step({&step, 1});
    }
    cache.reset();
    for (std::size_t t = 150; t < all.size(); ++t) {
        const keyhole::RowRequest requested{true, true, true, true};
        const keyhole::LaneStep step{copy.get(), all[t], static_cast<int>(t), requested, &copied};
        backend->step({&step, 1});
    }
    EXPECT_EQ(difference(out, copied), "");
}

TEST_F(EngineLanes, CancelledPrefillLeavesCachesEmpty) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    const auto policy = keyhole::resolve(keyhole::parse_lane_spec("h2o:budget=16").policy, 150, 20);
    const auto cache = backend->make_cache(policy);
    keyhole::RowOutput out;
    const keyhole::LanePrefill prefill{cache.get(), {}, &out};
    const std::span<const int> prompt = std::span<const int>(tokens_).first(150);
    try {
        backend->prefill(prompt, {&prefill, 1}, nullptr, [](double) { return false; });
        FAIL() << "was not cancelled";
    } catch (const keyhole::Error& error) {
        EXPECT_EQ(error.code(), keyhole::ErrorCode::cancelled);
    }
    EXPECT_EQ(cache->use().stored_tokens, 0);
    backend->prefill(prompt, {&prefill, 1}, nullptr, {});  // the cache is usable again
    EXPECT_EQ(cache->stored_positions(0).size(), 16u);
}

}  // namespace
}  // namespace reference::test_lanes
