// What a step launches and how often its list changes, counted on the host. A device spends microseconds on
// each launch, and makes a graph of each new list.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/step.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/bench/contender.h"
#include "engine/model/seeded_model.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/launch_counter.h"
#include "tests/reference/tiny_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace keyhole::test_cuda_launches {
namespace {

/// Counts waits and allocations too.
class Counter final : public reference::LaunchCounter {
  public:
    std::size_t most_bytes = std::size_t{1} << 40;  ///< of one piece of memory
    int n_refused = 0;
    std::size_t largest = 0;  ///< piece that it gave
    void* allocate(std::size_t n) override {
        if (n > most_bytes) {
            ++n_refused;
            fail(ErrorCode::no_memory, "no room for {} bytes", n);
        }
        largest = std::max(largest, n);
        return ExecutorOverHost::allocate(n);
    }
    int n_waits = 0;
    void wait() override {
        ++n_waits;
        ExecutorOverHost::wait();
    }
};

class CudaLaunches : public ::testing::Test {
  protected:
    /// Decodes with n_lanes lanes after a prompt of 40 tokens and counts the last rows.
    void decode(const std::string& spec, int n_lanes, int n_rows, const RowRequest& requested = {}) {
        const auto backend = make_cuda_backend(model_, executor_, products_);
        ContenderSetup setup;
        setup.name = spec;
        setup.policies.assign(to_index(n_lanes), resolve(parse_lane_spec(spec).policy, 40, n_rows));
        setup.context = 40;
        setup.requested = requested;
        Contender contender(*model_, *backend, std::move(setup));
        contender.decode(1);
        executor_->n_of_kernel.clear();
        executor_->n_waits = 0;
        before_ = executor_->counts();
        contender.decode(n_rows);
    }
    std::int64_t launches() const { return executor_->counts().launches - before_.launches; }
    std::int64_t new_graphs() const { return executor_->counts().new_graphs - before_.new_graphs; }

    std::shared_ptr<const Model> model_ = make_seeded_model(reference::tiny_shape(256), DType::f16);
    std::shared_ptr<Counter> executor_ = std::make_shared<Counter>();
    cuda::ProductOptions products_;
    cuda::LaunchCounts before_;
};

TEST_F(CudaLaunches, ARowWaitsOnceAndLaunchesFiveKernelsALayer) {
    const int n_layers = model_->config().n_layers;
    // q, k, v with their norm; attention; its output; gate and up with their norm and activation; the way
    // down. Besides: begin, embedding, all scores, output, selection, removal.
    for (const int n_lanes : {1, 2}) {
        decode("full", n_lanes, 4);
        EXPECT_EQ(launches(), 4 * (5 * n_layers + 6)) << n_lanes;
        EXPECT_EQ(executor_->n_waits, 4);
    }
    // Norms apart.
    decode("full", 3, 4);
    EXPECT_EQ(launches(), 4 * (7 * n_layers + 7));
}

TEST_F(CudaLaunches, ARecordedRowIsPackedByOneKernelMore) {
    RowRequest requested;
    requested.attention = requested.scores = true;
    requested.form = RowForm::packed;
    const int plain = 5 * model_->config().n_layers + 6;
    decode("full", 1, 4, requested);
    EXPECT_EQ(launches(), 4 * (plain + 1));
    EXPECT_EQ(executor_->n_waits, 4);
    decode("h2o:budget=16", 1, 4, requested);  // tokens that left were replaced by later ones
    EXPECT_EQ(launches(), 4 * (plain + 2));
    EXPECT_LE(new_graphs(), 1);  // from the row on that is out of text order
}

/// 7B at 8,192 tokens: 1 MB of logits a layer and lane.
TEST(CudaFolds, TakeAllLayersAtOnceUpToALimit) {
    constexpr std::int64_t kLayer = std::int64_t{32} * 8192 * 4;
    EXPECT_EQ(cuda::layers_per_fold(32, kLayer, cuda::kMostWaitingBytes), 32);
    EXPECT_EQ(cuda::layers_per_fold(32, 16 * kLayer, cuda::kMostWaitingBytes), 32);
    EXPECT_EQ(cuda::layers_per_fold(32, 17 * kLayer, cuda::kMostWaitingBytes), 16);
    EXPECT_EQ(cuda::layers_per_fold(32, 64 * kLayer, cuda::kMostWaitingBytes), 8);
    EXPECT_EQ(cuda::layers_per_fold(30, 64 * kLayer, cuda::kMostWaitingBytes), 8);
    EXPECT_EQ(cuda::layers_per_fold(32, 1000 * kLayer, cuda::kMostWaitingBytes), 1);
}

/// What rows decide, with the launches that folded their scores.
struct Decided {
    std::vector<float> logits;
    std::vector<std::vector<std::int32_t>> kept;  ///< in each row, lane and KV head
    int n_folds = 0;
    std::size_t largest = 0;  ///< memory that a row took, bytes
    int n_refused = 0;
};

Decided decide(const RowRequest& requested, std::size_t most_bytes) {
    ModelShape shape = reference::tiny_shape(256);
    shape.config.n_layers = 6;
    const std::shared_ptr<const Model> model = make_seeded_model(shape, DType::f16);
    const auto executor = std::make_shared<Counter>();
    const auto backend = make_cuda_backend(model, executor);
    std::vector<std::unique_ptr<KvCache>> caches;
    std::vector<RowOutput> outs(2);
    std::vector<LanePrefill> prompt;
    for (const char* spec : {"h2o:budget=16", "keyformer:budget=9"}) {
        caches.push_back(backend->make_cache(resolve(parse_lane_spec(spec).policy, 40, 12)));
        prompt.push_back({caches.back().get(), requested, &outs[prompt.size()]});
    }
    backend->prefill(std::vector<int>(40, 65), prompt, nullptr, {});
    executor->n_of_kernel.clear();
    executor->largest = 0;
    executor->most_bytes = most_bytes;
    Decided out;
    for (int row = 40; row < 52; ++row) {
        std::vector<LaneStep> steps;
        for (std::size_t n = 0; n < caches.size(); ++n)
            steps.push_back({caches[n].get(), 70 + row % 7, row, requested, &outs[n]});
        backend->step(steps);
        for (std::size_t n = 0; n < caches.size(); ++n) {
            out.logits.insert(out.logits.end(), outs[n].next_logits.begin(), outs[n].next_logits.end());
            for (int g = 0; g < model->layout().n_kv_heads(); ++g)
                out.kept.push_back(caches[n]->stored_positions(g));
        }
    }
    backend->finish_rows();
    out.n_folds = executor->n_of("FoldRow");
    out.largest = executor->largest;
    out.n_refused = executor->n_refused;
    return out;
}

/// Rows wait in memory of their own, or in that of what is recorded, and are folded at once or, where the
/// device has no room, in shares: the same bits.
TEST(CudaFolds, DecideTheSameWhereverRowsWait) {
    constexpr std::size_t kAnyRoom = std::size_t{1} << 40;
    const Decided whole = decide({}, kAnyRoom);
    EXPECT_EQ(whole.n_folds, 12);
    std::vector<Decided> others;
    RowRequest requested;
    requested.attention = requested.scores = true;
    requested.form = RowForm::packed;
    others.push_back(decide(requested, kAnyRoom));
    requested.form = RowForm::floats;
    others.push_back(decide(requested, kAnyRoom));
    requested.logits = true;
    others.push_back(decide(requested, kAnyRoom));
    for (const Decided& other : others) EXPECT_EQ(other.n_folds, 12);
    others.push_back(decide({}, whole.largest - 1));
    EXPECT_EQ(others.back().n_folds, 2 * 12);
    EXPECT_EQ(others.back().n_refused, 1) << "it does not ask again in each row";
    for (const Decided& other : others) {
        EXPECT_EQ(other.logits, whole.logits);
        EXPECT_EQ(other.kept, whole.kept);
    }
}

TEST_F(CudaLaunches, UpToEightLanesReadTheWeightsOnce) {
    products_.weights_precision = false;
    decode("full", 1, 1);
    const int once = executor_->n_of("MatrixVector");
    EXPECT_EQ(once, 4 * model_->config().n_layers + 1);
    for (int n = 2; n <= 15; ++n) {
        decode("window:budget=9", n, 1);
        EXPECT_EQ(executor_->n_of("MatrixVector"), n <= 8 ? once : 2 * once) << n << " lanes";
    }
    products_ = {};  // cuBLAS, as soon as it is faster
    for (const int n : {7, 8}) {
        decode("window:budget=9", n, 1);
        EXPECT_EQ(executor_->n_of("MatrixVector"), n < 8 ? once : 0) << n << " lanes";
    }
}

TEST_F(CudaLaunches, AListStaysTheSameHoweverOftenItEvicts) {
    for (const char* spec : {"h2o:budget=16", "h2o:budget=16,every=4", "tova:budget=16,every=7",
                             "keyformer:budget=16,every=64", "window:budget=16,every=3", "full"}) {
        decode(spec, 1, 64);
        EXPECT_LE(new_graphs(), 3) << spec;
    }
}

TEST_F(CudaLaunches, TwoLaneCountsInTurnKeepTheirLists) {
    const auto backend = make_cuda_backend(model_, executor_);
    std::vector<std::unique_ptr<Contender>> both;
    for (const int n_lanes : {1, 3}) {
        ContenderSetup setup;
        setup.policies.assign(to_index(n_lanes), resolve(parse_lane_spec("h2o:budget=16").policy, 40, 64));
        setup.context = 40;
        both.push_back(std::make_unique<Contender>(*model_, *backend, std::move(setup)));
    }
    for (int i = 0; i < 3; ++i)
        for (const auto& contender : both) contender->decode(1);
    before_ = executor_->counts();
    for (int i = 0; i < 20; ++i)
        for (const auto& contender : both) contender->decode(1);
    EXPECT_EQ(new_graphs(), 0);
}

/// At 7B and 8k, on an executor that does nothing.
class CudaHostPart : public ::testing::Test {
  protected:
    std::shared_ptr<const Model> model_ =
        make_seeded_model(shape_of("llama-2-7b"), DType::f16, 1, SeededStorage::unmade);
    std::shared_ptr<cuda::Executor> executor_ = cuda::make_idle_executor();
};

TEST_F(CudaHostPart, APromptOf8kTakesFewLaunches) {
    const auto launches = [&](int n, const char* spec, const RowRequest& requested) {
        const auto backend = make_cuda_backend(model_, executor_);
        const auto cache = backend->make_cache(resolve(parse_lane_spec(spec).policy, n, 20));
        RowOutput out;
        const LanePrefill lane{cache.get(), requested, &out};
        const std::int64_t before = executor_->counts().launches;
        backend->prefill(std::vector<int>(to_index(n), 65), {&lane, 1}, nullptr, {});
        return executor_->counts().launches - before;
    };
    // A layer: 2 norms, 7 products and as many roundings, rotation, activation, 3 roundings of q, k and v,
    // 3 kernels of attention, and what stays.
    const std::int64_t n_layers = model_->config().n_layers;
    for (const int n : {2048, 8192}) {
        EXPECT_EQ(launches(n, "full", {}), 25 * n_layers + 3) << n;
        EXPECT_EQ(launches(n, "keyformer:budget=64", {}), 25 * n_layers + 4) << n;  // its noise
    }
    // The last row: its logits and its softmax.
    RowRequest requested;
    requested.attention = true;
    EXPECT_EQ(launches(8192, "full", requested), 27 * n_layers + 3);
}

TEST_F(CudaHostPart, PackedRowsAreNotGathered) {
    const auto backend = make_cuda_backend(model_, executor_);
    const auto cache = backend->make_cache(resolve(parse_lane_spec("full").policy, 64, 20));
    RowOutput out;
    const LanePrefill lane{cache.get(), {}, &out};
    backend->prefill(std::vector<int>(64, 65), {&lane, 1}, nullptr, {});
    RowRequest requested;
    requested.attention = requested.scores = true;
    requested.form = RowForm::packed;
    const LaneStep step{cache.get(), 65, 64, requested, &out};
    backend->step({&step, 1});
    backend->finish_rows();
    EXPECT_TRUE(out.values.attention.empty() && out.values.scores.empty() && out.values.positions.empty());
    ASSERT_NE(out.block, nullptr);
    EXPECT_EQ(out.block->attention.size(), std::size_t{32 * 32 * 65});
    EXPECT_EQ(out.block->scores.size(), std::size_t{32 * 32 * 65});
    EXPECT_NE(out.block->attention.get_allocator().source(), nullptr);  // pinned: copied to directly
}

TEST_F(CudaHostPart, NothingIsGatheredWhereNothingIsWanted) {
    const auto backend = make_cuda_backend(model_, executor_);
    const auto cache = backend->make_cache(resolve(parse_lane_spec("full").policy, 64, 20));
    RowOutput out;
    const LanePrefill prompt{cache.get(), {}, &out};
    backend->prefill(std::vector<int>(64, 65), {&prompt, 1}, nullptr, {});
    for (const bool wanted : {false, true}) {
        RowRequest requested;
        requested.attention = wanted;
        const LaneStep step{cache.get(), 65, wanted ? 65 : 64, requested, &out};
        backend->step({&step, 1});
        EXPECT_EQ(out.values.attention.empty(), !wanted);
        EXPECT_EQ(out.values.positions.empty(), !wanted);
    }
    ASSERT_EQ(out.values.positions.size(), 32u * 32 * 66);
    for (int i = 0; i < 66; ++i) ASSERT_EQ(out.values.positions[to_index(i)], i);
}

TEST(IdleExecutor, GivesAddressesButNoMemory) {
    const auto executor = cuda::make_idle_executor();
    void *a = executor->allocate(std::size_t{1} << 36), *b = executor->allocate(1);  // 64 GB
    EXPECT_NE(a, b);
    EXPECT_GE(executor->memory().total_bytes - executor->memory().free_bytes, std::int64_t{1} << 36);
    float zero = 0;
    executor->download(&zero, a, sizeof(zero));
    EXPECT_EQ(zero, 0);
    executor->release(a);
}

}  // namespace
}  // namespace keyhole::test_cuda_launches
