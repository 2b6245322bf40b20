// Rows that are packed on the device and copied beside its work: the same bits as from floats, complete when
// a record needs them, in memory that outlives the backend. The host executor makes such copies as late as it
// may.
#include "engine/backend/cuda/kernel_list.h"
#include "engine/backend/cuda/pinned_pool.h"
#include "engine/base/index.h"
#include "engine/policy/attention.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/executor_over_host.h"
#include "tests/reference/session_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace reference::test_cuda_rows {
namespace {

using keyhole::RowBlock;
using keyhole::RowForm;
using keyhole::RowOutput;
using keyhole::to_index;
using keyhole::cuda::PinnedPool;

const std::vector<std::string> kSpecs = {"full", "h2o:budget=12,scope=layer", "keyformer:budget=10",
                                         "tova:budget=9,positions=compressed"};

template <class V>
bool same_bits(const V& a, const V& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

/// Lanes of one backend that are fed the same tokens, with one command between rows.
class Rows {
  public:
    Rows(const std::shared_ptr<const keyhole::Model>& model, keyhole::Backend& backend, RowForm form)
        : backend_(backend), outs(kSpecs.size()) {
        requested_.attention = requested_.scores = true;
        requested_.form = form;
        std::vector<keyhole::LanePrefill> prompt;
        for (std::size_t i = 0; i < kSpecs.size(); ++i) {
            caches_.push_back(backend.make_cache(policy_of(kSpecs[i], *model, 30)));
            prompt.push_back({caches_.back().get(), requested_, &outs[i]});
        }
        backend.prefill(std::vector<int>(30, 65), prompt, nullptr, {});
    }
    void step(int row) {
        if (row == 36) caches_[2]->evict(1, 33);  // its unit selects on the host from now on
        std::vector<keyhole::LaneStep> steps;
        for (std::size_t i = 0; i < caches_.size(); ++i)
            steps.push_back({caches_[i].get(), 60 + row % 20, row, requested_, &outs[i]});
        backend_.step(steps);
    }

  private:
    keyhole::Backend& backend_;
    keyhole::RowRequest requested_;
    std::vector<std::unique_ptr<keyhole::KvCache>> caches_;

  public:
    std::vector<RowOutput> outs;
};

class CudaRows : public ::testing::Test {
  protected:
    TinyModel folder_{TinyShape{}};
    std::shared_ptr<const keyhole::Model> model_ = keyhole::load_model(folder_.folder());
};

TEST_F(CudaRows, PackedAloneTheyHoldWhatTheyHoldBesideFloats) {
    const auto one = cuda_backend(model_), other = cuda_backend(model_, 77);
    Rows both(model_, *one, RowForm::both), packed(model_, *other, RowForm::packed);
    for (int row = 30; row < 50; ++row) {
        both.step(row);
        one->finish_rows();
        packed.step(row);
        other->finish_rows();
        for (std::size_t lane = 0; lane < kSpecs.size(); ++lane) {
            SCOPED_TRACE(kSpecs[lane] + ", row " + std::to_string(row));
            const RowOutput &a = both.outs[lane], &b = packed.outs[lane];
            expect_block_of(a);
            ASSERT_NE(b.block, nullptr);
            EXPECT_TRUE(b.values.attention.empty() && b.values.scores.empty() && b.values.positions.empty());
            EXPECT_EQ(a.block->offset, b.block->offset);
            EXPECT_EQ(a.block->head_offset, b.block->head_offset);
            EXPECT_TRUE(same_bits(a.block->attention, b.block->attention));
            EXPECT_TRUE(same_bits(a.block->scores, b.block->scores));
            EXPECT_TRUE(same_bits(a.block->threshold, b.block->threshold));
            EXPECT_EQ(mean_measures(model_->layout(), a).sink_share,
                      mean_measures(model_->layout(), b).sink_share);
        }
    }
}

TEST_F(CudaRows, AreNotCompleteBeforeTheyAreFinished) {
    const auto backend = cuda_backend(model_);
    Rows rows(model_, *backend, RowForm::packed);
    rows.step(30);
    const std::shared_ptr<const RowBlock> block = rows.outs[0].block;
    EXPECT_EQ(block->attention[0], 0xffff);  // what the host executor leaves until then
    backend->finish_rows();
    EXPECT_LE(block->attention[0], 0x3c00);  // 1
    const std::vector<std::uint16_t> attention(block->attention.begin(), block->attention.end());
    rows.step(31);  // writes to the same memory of the device
    EXPECT_TRUE(same_bits(attention, {block->attention.begin(), block->attention.end()}));
}

TEST_F(CudaRows, RecordsOfASessionAreTheSameWithAndWithoutASink) {
    keyhole::RunSpec spec = run_spec("aaaaaaaaaaaaaaaa", kSpecs, 20);
    spec.ignore_eos = true;
    spec.requested.attention = spec.requested.scores = true;
    std::vector<std::shared_ptr<const keyhole::StepTrace>> steps[2];
    for (const bool with_sink : {false, true}) {
        const auto backend = cuda_backend(model_);
        KeepRows sink;
        keyhole::Session session(model_, *backend, spec, with_sink ? &sink : nullptr, 0);
        steps[with_sink].push_back(session.prefill());
        for (int i = 0; i < 12; ++i) {
            if (i == 6) session.apply(keyhole::parse_command("fork 1 h2o:budget=6"));
            steps[with_sink].push_back(session.step());
        }
    }  // records outlive session and backend
    ASSERT_EQ(steps[0].size(), steps[1].size());
    for (std::size_t i = 0; i < steps[0].size(); ++i)
        for (std::size_t lane = 0; lane < steps[0][i]->lanes.size(); ++lane) {
            SCOPED_TRACE("row " + std::to_string(i) + ", lane " + std::to_string(lane));
            const keyhole::LaneRecord &a = steps[0][i]->lanes[lane], &b = steps[1][i]->lanes[lane];
            ASSERT_TRUE(a.rows != nullptr && b.rows != nullptr);
            EXPECT_FALSE(a.rows->attention.empty() || a.rows->scores.empty());
            EXPECT_TRUE(same_bits(a.rows->attention, b.rows->attention));
            EXPECT_TRUE(same_bits(a.rows->scores, b.rows->scores));
            EXPECT_TRUE(same_bits(a.rows->threshold, b.rows->threshold));
            EXPECT_EQ(a.measures.sink_share, b.measures.sink_share);
        }
}

/// Counts pinned memory, and refuses large pieces, as those of rows are.
class Pinned final : public ExecutorOverHost {
  public:
    void* allocate_host(std::size_t n) override {
        if (n > most_bytes) keyhole::fail(keyhole::ErrorCode::no_memory, "no pinned memory");
        ++n_live;
        return ExecutorOverHost::allocate_host(n);
    }
    void release_host(void* data) noexcept override {
        --n_live;
        ExecutorOverHost::release_host(data);
    }
    std::size_t most_bytes = std::size_t{1} << 40;
    int n_live = 0;
};

TEST_F(CudaRows, LieInOrdinaryMemoryWhereThereIsNoOther) {
    const auto executor = std::make_shared<Pinned>();
    const auto one = make_cuda_backend(model_, executor), other = cuda_backend(model_);
    Rows without(model_, *one, RowForm::packed), with(model_, *other, RowForm::packed);
    with.step(30);
    other->finish_rows();
    executor->most_bytes = 500'000;
    without.step(30);
    one->finish_rows();
    for (std::size_t lane = 0; lane < kSpecs.size(); ++lane) {
        const RowBlock &a = *without.outs[lane].block, &b = *with.outs[lane].block;
        EXPECT_EQ(a.attention.get_allocator().source(), nullptr);
        EXPECT_NE(b.attention.get_allocator().source(), nullptr);
        EXPECT_TRUE(same_bits(a.attention, b.attention));
        EXPECT_TRUE(same_bits(a.scores, b.scores));
    }
}

TEST(PinnedPool, GivesABlockThatCameBack) {
    const auto executor = std::make_shared<Pinned>();
    auto pool = std::make_shared<PinnedPool>(executor);
    for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20}) {
        void* const first = pool->take(n);
        const int n_live = executor->n_live;
        std::memset(first, 1, n);
        void* const second = pool->take(n);
        EXPECT_NE(first, second);
        pool->give_back(first, n);
        EXPECT_EQ(pool->take(n), first) << n;
        EXPECT_LE(executor->n_live, n_live + 1);
    }
    // A row that is a token longer takes the same block.
    void* const row = pool->take(9'000'000);
    pool->give_back(row, 9'000'000);
    EXPECT_EQ(pool->take(9'000'512), row);
    pool.reset();
    EXPECT_EQ(executor->n_live, 0);
}

TEST(PinnedPool, FreesLargeBlocksBeforeItIsFull) {
    const auto executor = std::make_shared<Pinned>();
    PinnedPool pool(executor, std::size_t{10} << 20);
    void* const small = pool.take(std::size_t{4} << 20);
    void* const other = pool.take(std::size_t{4} << 20);
    EXPECT_THROW(pool.take(std::size_t{8} << 20), keyhole::Error);
    pool.give_back(small, std::size_t{4} << 20);
    EXPECT_THROW(pool.take(std::size_t{8} << 20), keyhole::Error);
    pool.give_back(other, std::size_t{4} << 20);
    EXPECT_NE(pool.take(std::size_t{8} << 20), nullptr);
    EXPECT_EQ(pool.bytes(), std::size_t{8} << 20);
}

TEST(PinnedPool, TakesBlocksBackOnAnyThread) {
    auto pool = std::make_shared<PinnedPool>(std::make_shared<Pinned>());
    std::vector<keyhole::UninitialisedVector<float>> rows;
    for (int i = 0; i < 64; ++i)
        rows.emplace_back(std::size_t{1000} + to_index(i), keyhole::UninitialisedAllocator<float>(pool));
    const keyhole::UninitialisedVector<float> copy = rows.front();
    EXPECT_EQ(copy.get_allocator().source(), nullptr);
    std::vector<keyhole::UninitialisedVector<float>> half(std::make_move_iterator(rows.begin() + 32),
                                                          std::make_move_iterator(rows.end()));
    EXPECT_NE(half.front().get_allocator().source(), nullptr);
    rows.resize(32);
    const std::size_t bytes = pool->bytes();
    std::thread other([half = std::move(half)]() mutable { half.clear(); });
    rows.clear();
    other.join();
    // Blocks that were lost would not leave room for so many.
    for (int round = 0; round < 16; ++round) {
        for (int i = 0; i < 64; ++i)
            rows.emplace_back(std::size_t{1000} + to_index(i), keyhole::UninitialisedAllocator<float>(pool));
        std::thread([back = std::move(rows)]() mutable { back.clear(); }).join();
        rows.clear();
    }
    EXPECT_EQ(pool->bytes(), bytes);
}

TEST(CudaKernelsOfRows, SlotsAreListedByPositionOverWindows) {
    using keyhole::cuda::OrderSlots;
    for (const int n : {1, 255, 3000})
        for (const unsigned seed : {1u, 2u}) {
            std::mt19937 random(seed);
            std::vector<std::int32_t> positions(to_index(n));
            for (int i = 0; i < n; ++i)
                positions[to_index(i)] =
                    static_cast<std::int32_t>(std::int64_t{i} * 3 * OrderSlots::kWindow / n + (seed == 1));
            std::shuffle(positions.begin(), positions.end(), random);
            keyhole::cuda::AnyHead head{nullptr, nullptr, positions.data(), nullptr, n, n};
            keyhole::cuda::AnyLane lane{};
            lane.heads = &head;
            std::vector<std::int32_t> order(to_index(n), -1);
            keyhole::cuda::PackedLane packed{};
            packed.order = order.data();
            run_on_host(OrderSlots{&lane, &packed, n}, {1, 1, 4}, 256, seed);
            for (int i = 1; i < n; ++i)
                ASSERT_LT(positions.at(to_index(order[to_index(i - 1)])),
                          positions.at(to_index(order[to_index(i)])))
                    << n << " " << i;
            ASSERT_GE(order[0], 0);
        }
}

}  // namespace
}  // namespace reference::test_cuda_rows
