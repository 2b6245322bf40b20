#include "engine/backend/cpu/cache.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/index.h"
#include "engine/base/large_pages.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/data_bytes.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>

namespace keyhole::cpu::test_cpu_cache {
namespace {

constexpr int kHeadDim = 4;

void write(CpuKvCache& cache, int g, int slot, float value) {
    std::array<float, kHeadDim> key, negative;
    key.fill(value);
    negative.fill(-value);
    cache.write(g, slot, key.data(), negative.data());
}

/// Returns one number of a slot's key or value.
float number_at(const KvRows& rows, int slot, int d) {
    std::vector<float> row(to_index(rows.head_dim));
    widen_kv(rows.from_row(slot), 1, row.data());
    return row[to_index(d)];
}

void fill(CpuKvCache& cache, int n_kv_heads, int from, int to) {
    for (int g = 0; g < n_kv_heads; ++g)
        for (int p = from; p < to; ++p) {
            write(cache, g, cache.append(g, p), static_cast<float>(100 * g + p));
        }
}

/// Expects every entry to keep its own K, V and score after slots moved.
void expect_consistent(const CpuKvCache& cache, int g, int head, const std::vector<std::int32_t>& positions) {
    ASSERT_EQ(cache.stored_positions(g), positions);
    for (int i = 0; i < cache.count(g); ++i) {
        const int slot = cache.order(g)[i];
        ASSERT_LT(slot, cache.count(g)) << "slots are dense";
        const float p = static_cast<float>(positions[to_index(i)]);
        EXPECT_EQ(number_at(cache.keys(g), slot, 1), 100 * static_cast<float>(g) + p);
        EXPECT_EQ(number_at(cache.values(g), slot, 3), -100 * static_cast<float>(g) - p);
        EXPECT_EQ(cache.score(kSum, head)[slot], p + 0.5f);
    }
}

TEST(CpuKvCache, EvictionKeepsOrderAndMovesEverythingOfASlot) {
    const KvLayout layout = KvLayout::grouped(1, 2, 2);
    CpuKvCache cache(layout, kHeadDim);
    cache.set_policy({});
    cache.reserve(8);
    fill(cache, 2, 0, 8);
    for (int i = 0; i < 8; ++i) cache.score(kSum, 1)[cache.order(1)[i]] = static_cast<float>(i) + 0.5f;
    cache.evict(1, std::vector<int>{0, 3, 6});
    expect_consistent(cache, 1, 1, {1, 2, 4, 5, 7});
    EXPECT_EQ(cache.count(0), 8) << "other heads are left alone";
    const int slot = cache.append(1, 8);
    write(cache, 1, slot, 108.0f);
    cache.score(kSum, 1)[slot] = 8.5f;
    cache.evict(1, std::vector<int>{2});
    expect_consistent(cache, 1, 1, {1, 2, 5, 7, 8});
}

TEST(CpuKvCache, MemoryFollowsTheCapacity) {
    const KvLayout layout = KvLayout::grouped(2, 2, 2);
    CpuKvCache cache(layout, kHeadDim);
    cache.set_policy({});
    cache.reserve(1000);
    // 4 KV heads x 1000 slots x (K + V + position + order + one score), four bytes each
    EXPECT_EQ(cache.use().allocated_bytes, 4 * 1000 * (2 * kHeadDim + 2 + 1) * 4);
    fill(cache, 4, 0, 10);
    EXPECT_EQ(cache.use().stored_tokens, 40);
    EXPECT_EQ(cache.use().stored_bytes, 40 * 2 * kHeadDim * 4);
    cache.reserve(3);
    EXPECT_EQ(cache.capacity(2), 10) << "stored entries are never dropped by a resize";
    EXPECT_EQ(cache.stored_positions(3), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

// In a child, since limits stay.
TEST(CpuKvCache, APolicyThatFindsNoMemoryChangesNothing) {
    if (reference::under_a_sanitizer()) GTEST_SKIP() << "sanitizers need terabytes";
    const auto works = [] {
        const KvLayout layout = KvLayout::grouped(2, 2, 2);
        CpuKvCache cache(layout, 64);
        cache.set_policy(resolve(parse_lane_spec("h2o:budget=900").policy, 1000, 8));
        cache.reserve(40000);  // 4 heads of 40,000 slots: 80 MB
        for (int g = 0; g < 4; ++g)
            for (int p = 0; p < 1000; ++p) {
                const std::array<float, 64> row{static_cast<float>(p)};
                cache.write(g, cache.append(g, p), row.data(), row.data());
            }
        const float* const scores = cache.score(kSum, 3);
        const rlimit limit{reference::data_bytes() + (8 << 20), RLIM_INFINITY};
        if (::setrlimit(RLIMIT_DATA, &limit) != 0) std::_Exit(2);
        const ResolvedPolicy wanted =
            resolve(parse_lane_spec("snapkv:budget=800,kv_dtype=f16").policy, 1000, 8);
        try {
            cache.set_policy(wanted, 999);
            std::_Exit(3);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::no_memory) std::_Exit(4);
        }
        if (cache.policy().budget != 900 || cache.policy().kept_rows() != 0) std::_Exit(5);
        if (cache.kv_type() != KvType::f32 || cache.score(kSum, 3) != scores) std::_Exit(6);
        if (number_at(cache.keys(3), 700, 0) != 700 || cache.count(2) != 1000) std::_Exit(7);
        std::_Exit(0);
    };
    EXPECT_EXIT(works(), ::testing::ExitedWithCode(0), "");
}

TEST(CpuKvCache, AnotherTypeConvertsWhatIsStoredAndItsMemory) {
    const KvLayout layout = KvLayout::grouped(2, 2, 2);
    constexpr int kWide = 40, kSlots = 30;
    for (const KvType type : {KvType::f16, KvType::bf16, KvType::q8}) {
        CpuKvCache cache(layout, kWide), from_start(layout, kWide);
        ResolvedPolicy policy;
        policy.kv_dtype = KvType::f32;
        cache.set_policy(policy);
        policy.kv_dtype = type;
        from_start.set_policy(policy);
        for (CpuKvCache* c : {&cache, &from_start}) c->reserve(kSlots);
        const auto row = [](int g, int p, float factor) {
            std::array<float, kWide> out;
            for (int d = 0; d < kWide; ++d)
                out[to_index(d)] = factor * std::sin(static_cast<float>(97 * g + 13 * p + d));
            return out;
        };
        for (CpuKvCache* c : {&cache, &from_start})
            for (int g = 0; g < 4; ++g)
                for (int p = 0; p < kSlots; ++p)
                    c->write(g, c->append(g, p), row(g, p, 3).data(), row(g, p, 0.1f).data());
        cache.evict(1, std::vector<int>{0, 3, 6});
        from_start.evict(1, std::vector<int>{0, 3, 6});
        cache.set_policy(policy);
        const auto same_bytes = [&](const CpuKvCache& c) {
            for (int g = 0; g < 4; ++g)
                for (const auto& [a, b] :
                     {std::pair{c.keys(g), from_start.keys(g)}, std::pair{c.values(g), from_start.values(g)}})
                    if (std::memcmp(a.data, b.data, to_index(c.count(g) * b.row_bytes())) != 0) return false;
            return c.kv_type() == type && c.stored_positions(1) == from_start.stored_positions(1);
        };
        EXPECT_TRUE(same_bytes(cache)) << kv_type_name(type);
        EXPECT_TRUE(same_bytes(static_cast<const CpuKvCache&>(*cache.clone()))) << kv_type_name(type);
        const std::int64_t row_bytes = kv_row_bytes(type, kWide);
        EXPECT_EQ(cache.use().stored_bytes, (4 * kSlots - 3) * 2 * row_bytes);
        EXPECT_EQ(cache.use().allocated_bytes, 4 * kSlots * (2 * row_bytes + (2 + 1) * 4));
        cache.reserve(2 * kSlots);
        EXPECT_TRUE(same_bytes(cache)) << "after growing, " << kv_type_name(type);
        policy.kv_dtype = KvType::f32;
        cache.set_policy(policy);
        std::array<float, kWide> wide{};
        widen_kv(from_start.keys(2), 1, wide.data());
        EXPECT_EQ(std::memcmp(cache.keys(2).data, wide.data(), sizeof wide), 0) << "no bits came back";
        EXPECT_NE(wide, row(2, 0, 3));
    }
}

TEST(CpuKvCache, EveryKvHeadHasRoomOfItsOwn) {
    const KvLayout layout = KvLayout::grouped(2, 4, 2);  // 4 KV heads, two readers each
    CpuKvCache cache(layout, kHeadDim);
    cache.set_policy({});
    EXPECT_TRUE(cache.has_no_room());
    cache.reserve(std::array{3, 50, 7, 1});
    EXPECT_EQ(cache.use().allocated_bytes, (3 + 50 + 7 + 1) * (2 * kHeadDim + 2 + 2) * 4);
    const std::array room = {3, 50, 7, 1};
    for (int g = 0; g < 4; ++g)
        for (int p = 0; p < room[to_index(g)]; ++p) {
            write(cache, g, cache.append(g, p), static_cast<float>(100 * g + p));
            for (int h : {2 * g, 2 * g + 1}) cache.score(kSum, h)[p] = static_cast<float>(p) + 0.5f;
        }
    const auto all_consistent = [&](const CpuKvCache& c) {
        for (int g = 0; g < 4; ++g)
            for (int h : {2 * g, 2 * g + 1}) {
                std::vector<std::int32_t> expected;
                for (int p = 0; p < room[to_index(g)]; ++p) expected.push_back(p);
                expect_consistent(c, g, h, expected);
            }
    };
    all_consistent(cache);
    cache.reserve(std::array{60, 1, 9, 4});
    EXPECT_EQ(cache.capacity(1), 50);
    EXPECT_EQ(cache.capacity(0), 60);
    all_consistent(cache);
    all_consistent(static_cast<const CpuKvCache&>(*cache.clone()));
}

TEST(CpuKvCache, GrowsInPlaceWhereNothingIsEvicted) {
    const reference::TinyModel tiny(
        {.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = kHeadDim, .n_ctx = 400});
    const std::shared_ptr<const Model> model = load_model(tiny.folder());
    CpuKvCache cache(model);
    const int n_kv_heads = cache.layout().n_kv_heads();
    const auto fill_scored = [&](CpuKvCache& c, int from, int to) {
        fill(c, n_kv_heads, from, to);
        for (int g = 0; g < n_kv_heads; ++g)
            for (int p = from; p < to; ++p) c.score(kSum, g)[p] = static_cast<float>(p) + 0.5f;
    };
    const auto expect_all = [&](const CpuKvCache& c, int n) {
        std::vector<std::int32_t> expected;
        for (int p = 0; p < n; ++p) expected.push_back(p);
        for (int g = 0; g < n_kv_heads; ++g) expect_consistent(c, g, g, expected);
    };
    cache.set_policy({});
    cache.reserve(60);
    fill_scored(cache, 0, 60);
    const std::byte* first = cache.keys(0).data;
    const auto allocated = cache.use().allocated_bytes;
    cache.reserve(300);
    EXPECT_EQ(cache.keys(0).data, first);
    EXPECT_EQ(cache.capacity(1), 300);
    EXPECT_EQ(cache.use().allocated_bytes, 5 * allocated);
    fill_scored(cache, 60, 300);
    expect_all(cache, 300);
    const auto copy = cache.clone();
    cache.evict(0, std::vector<int>{0});
    expect_all(static_cast<CpuKvCache&>(*copy), 300);
    // Beyond the context the cache is reallocated and keeps its content.
    CpuKvCache& moved = static_cast<CpuKvCache&>(*copy);
    moved.reserve(500);
    fill_scored(moved, 300, 500);
    expect_all(moved, 500);
    // A cache that evicts reserves addresses for its budget only.
    CpuKvCache bounded(model);
    bounded.set_policy(resolve(parse_lane_spec("h2o:budget=40").policy, 60, 64));
    bounded.reserve(41);
    first = bounded.keys(0).data;
    EXPECT_EQ(bounded.keys(1).data - first, 41 * kHeadDim * 4);
}

TEST(CpuKvCache, MovesToLargePagesWhileMovingIsCheap) {
    if (!has_large_pages()) GTEST_SKIP() << "the system gives no large pages";
    // 4 KV heads x 64 dimensions x 4 bytes x keys and values: 2 KB a slot, 32 MB for 16,384 of them.
    const reference::TinyModel tiny(
        {.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .n_ctx = 1 << 20});
    const std::shared_ptr<const Model> model = load_model(tiny.folder());
    CpuKvCache cache(model);
    cache.set_policy({});
    const auto kept = [&] { return (cache.keys(1).data - cache.keys(0).data) / cache.keys(0).row_bytes(); };
    cache.reserve(1000);
    EXPECT_EQ(kept(), 8001);
    cache.reserve(2000);
    EXPECT_EQ(kept(), 8001) << "in place";
    std::array<float, 64> key{}, value{};
    for (int p = 0; p < 2000; ++p) {
        key[0] = static_cast<float>(p);
        value[63] = static_cast<float>(-p);
        cache.write(3, cache.append(3, p), key.data(), value.data());
    }
    cache.reserve(8002);
    EXPECT_EQ(kept(), 16385) << "no more than 32 MB";
    cache.reserve(16385);
    EXPECT_EQ(kept(), 16385);
    cache.reserve(20000);
    EXPECT_EQ(kept(), 21249) << "a sixteenth more";
    for (int p = 0; p < 2000; ++p) {
        ASSERT_EQ(number_at(cache.keys(3), p, 0), static_cast<float>(p));
        ASSERT_EQ(number_at(cache.values(3), p, 63), static_cast<float>(-p));
    }
    // 256 MB and more stay where they are: 131,072 slots.
    CpuKvCache large(model);
    large.set_policy({});
    large.reserve(131071);
    EXPECT_EQ((large.keys(1).data - large.keys(0).data) / large.keys(0).row_bytes(), 139261);
    large.reserve(139262);
    EXPECT_EQ((large.keys(1).data - large.keys(0).data) / large.keys(0).row_bytes(), (1 << 20) | 1);
}

TEST(CpuKvCache, CopiesValuesInTheOrderOfTheText) {
    const KvLayout layout = KvLayout::grouped(1, 1, 1);
    CpuKvCache cache(layout, kHeadDim);
    cache.set_policy({});
    cache.reserve(8);
    fill(cache, 1, 0, 6);
    const auto in_order = [&] {
        std::vector<std::int32_t> out(to_index(cache.count(0)));
        cache.copy_in_order(0, cache.positions(0), out.data());
        return out;
    };
    EXPECT_TRUE(cache.is_in_order(0));
    EXPECT_EQ(in_order(), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
    cache.evict(0, std::vector<int>{1, 3});
    fill(cache, 1, 6, 7);
    EXPECT_FALSE(cache.is_in_order(0));
    EXPECT_EQ(in_order(), (std::vector<std::int32_t>{0, 2, 4, 5, 6}));
    EXPECT_FALSE(static_cast<const CpuKvCache&>(*cache.clone()).is_in_order(0));
    cache.clear();
    cache.reserve(2);
    fill(cache, 1, 3, 5);
    EXPECT_TRUE(cache.is_in_order(0));
    EXPECT_EQ(in_order(), (std::vector<std::int32_t>{3, 4}));
}

TEST(CpuKvCache, ANewAccumulatorStartsFromItsNearestRelative) {
    const KvLayout layout = KvLayout::grouped(1, 1, 1);
    CpuKvCache cache(layout, kHeadDim);
    cache.set_policy({});
    cache.reserve(4);
    fill(cache, 1, 0, 3);
    for (int s = 0; s < 3; ++s) cache.score(kSum, 0)[s] = static_cast<float>(s) + 1;
    EXPECT_EQ(cache.score(kForgetting, 0), nullptr);
    ResolvedPolicy forgetting;
    forgetting.alpha = 0.2f;
    cache.set_policy(forgetting);
    ASSERT_NE(cache.score(kForgetting, 0), nullptr);
    EXPECT_EQ(cache.score(kForgetting, 0)[2], 3.0f);
    cache.score(kForgetting, 0)[2] = 9.0f;
    ResolvedPolicy both = forgetting;
    both.noise = NoiseKind::gumbel;
    cache.set_policy(both);
    EXPECT_EQ(cache.score(kTempered, 0)[2], 3.0f) << "from the plain sum";
    EXPECT_EQ(cache.score(kTemperedForgetting, 0)[2], 9.0f) << "from the forgetting sum";
    ASSERT_NE(cache.noise(0), nullptr);
    EXPECT_NE(cache.noise(0)[0], cache.noise(0)[1]);
    const auto copy = cache.clone();
    EXPECT_EQ(static_cast<const CpuKvCache&>(*copy).score(kTemperedForgetting, 0)[2], 9.0f);
    EXPECT_EQ(copy->stored_positions(0), cache.stored_positions(0));
}

ResolvedPolicy keep(int budget, int sinks, int recent) {
    ResolvedPolicy policy;
    policy.budget = policy.stored = budget;
    policy.sinks = sinks;
    policy.recent = policy.newest = recent;
    return policy;
}

TEST(Select, ProtectsSinksAndRecentAndKeepsTheBest) {
    const std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
    const std::vector<float> score = {0, 9, 5, 7, 1, 8, 0, 0};
    std::vector<int> victims;
    // positions 0 (sink), 6 and 7 (recent) are protected; 1, 5 and 3 are the best of the rest
    EXPECT_EQ(select_victims(positions, score, {}, keep(6, 1, 2), 99, victims), 7.0f);
    EXPECT_EQ(victims, (std::vector<int>{2, 4}));
    EXPECT_TRUE(std::isnan(select_victims(positions, score, {}, keep(3, 1, 2), 99, victims)))
        << "nothing that competed stayed";
    EXPECT_EQ(victims, (std::vector<int>{1, 2, 3, 4, 5}));
    EXPECT_TRUE(std::isnan(select_victims(positions, score, {}, keep(8, 0, 0), 99, victims)));
    EXPECT_TRUE(victims.empty());
}

TEST(Select, SinksAreFirstPositionsNotFirstSlots) {
    const std::vector<std::int32_t> positions = {3, 5, 8, 9};
    std::vector<int> victims;
    select_victims(positions, std::vector<float>{1, 2, 3, 4}, {}, keep(3, 2, 0), 99, victims);
    EXPECT_EQ(victims, (std::vector<int>{0})) << "the real sinks left long ago";
}

TEST(Select, AmongEqualsTheOlderLeavesAndNanRanksLowest) {
    const std::vector<std::int32_t> positions = {0, 1, 2, 3};
    std::vector<int> victims;
    select_victims(positions, std::vector<float>{2, 1, 1, 1}, {}, keep(2, 0, 0), 99, victims);
    EXPECT_EQ(victims, (std::vector<int>{1, 2}));
    select_victims(positions, std::vector<float>{2, 1, std::numeric_limits<float>::quiet_NaN(), 3}, {},
                   keep(3, 0, 0), 99, victims);
    EXPECT_EQ(victims, (std::vector<int>{2}));
}

std::vector<int> victims_of(const std::vector<std::int32_t>& positions, const std::vector<float>& score,
                            const std::vector<std::int32_t>& pinned, const ResolvedPolicy& policy,
                            int row = 99) {
    std::vector<int> victims;
    select_victims(positions, score, pinned, policy, row, victims);
    return victims;
}

TEST(Select, PinnedTokensStayAndCountInTheBudget) {
    const std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
    const std::vector<float> score = {0, 9, 5, 7, 1, 8, 0, 0};
    // sink 0, newest 6 and 7; of the rest the pinned 4 and the two best, 1 and 5
    EXPECT_EQ(victims_of(positions, score, {4}, keep(6, 1, 2)), (std::vector<int>{2, 3}));
    EXPECT_EQ(victims_of(positions, score, {0, 6, 7}, keep(6, 1, 2)), (std::vector<int>{2, 4}))
        << "pinning what is safe anyway changes nothing";
    EXPECT_EQ(victims_of(positions, score, {1, 2, 3, 4}, keep(6, 1, 2)), (std::vector<int>{5, 6}))
        << "nothing else competes: the oldest of the newest yields";
    EXPECT_EQ(victims_of(positions, score, {3, 4, 5}, keep(4, 3, 1)), (std::vector<int>{1, 2, 6, 7}))
        << "then the newest of the sinks";
    EXPECT_EQ(victims_of(positions, score, {1, 2, 3, 4, 5}, keep(3, 1, 2)), (std::vector<int>{0, 6, 7}))
        << "pins alone hold a unit above its budget";
}

TEST(Select, TheReleasedKeyformerLosesTheColumnThatLeavesItsWindow) {
    // k = 5, w = 3: after row 7 position 7 - 3 + 1 = 5 is evicted, 6 and 7 stay, and the best 2 of the older
    // ones
    ResolvedPolicy policy = keep(4, 0, 2);
    policy.budget = 5;
    policy.recent = 3;
    policy.gap = ResolvedPolicy::Gap::dropped;
    policy.counts_columns = true;
    const std::vector<std::int32_t> positions = {0, 1, 3, 4, 5, 6, 7};
    const std::vector<float> score = {1, 4, 3, 2, 9, 0, 0};
    EXPECT_EQ(victims_of(positions, score, {}, policy, 7), (std::vector<int>{0, 3, 4}));
    EXPECT_EQ(victims_of(positions, score, {5}, policy, 7), (std::vector<int>{0, 2, 3})) << "a pin saves it";
    EXPECT_EQ(victims_of({1, 5, 6, 7}, {1, 1, 1, 1}, {}, policy, 7), (std::vector<int>{1}))
        << "room or not, as when entries left by hand";
    EXPECT_TRUE(victims_of({0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, {}, policy, 4).empty())
        << "a text of k columns keeps all of them";
}

TEST(CpuKvCache, TokensLeaveAndArePinnedByHand) {
    const KvLayout layout = KvLayout::grouped(1, 2, 2);
    CpuKvCache cache(layout, kHeadDim);
    cache.set_policy({});
    cache.reserve(4);
    fill(cache, 2, 0, 4);
    EXPECT_FALSE(cache.evict(0, 7));
    EXPECT_TRUE(cache.evict(0, 1));
    EXPECT_FALSE(cache.evict(0, 1)) << "it is gone";
    EXPECT_EQ(cache.stored_positions(0), (std::vector<std::int32_t>{0, 2, 3}));
    EXPECT_EQ(cache.stored_positions(1).size(), 4u);
    EXPECT_FALSE(cache.set_pinned(0, 1, true));
    EXPECT_TRUE(cache.set_pinned(0, 3, true));
    EXPECT_TRUE(cache.set_pinned(0, 2, true));
    EXPECT_TRUE(cache.set_pinned(0, 3, true)) << "twice is once";
    EXPECT_TRUE(cache.evict(0, 0)) << "slots move, pins do not";
    const auto copy = cache.clone();
    EXPECT_EQ(copy->pinned_positions(0), (std::vector<std::int32_t>{2, 3}));
    EXPECT_TRUE(copy->pinned_positions(1).empty());
    EXPECT_TRUE(cache.set_pinned(0, 2, false));
    EXPECT_EQ(cache.pinned_positions(0), (std::vector<std::int32_t>{3}));
    EXPECT_TRUE(cache.evict(0, 3));
    EXPECT_TRUE(cache.pinned_positions(0).empty()) << "a pin goes with its token";
}

TEST(Select, APinHoldsInAllHeadsOfTheUnit) {
    const KvLayout layout = KvLayout::grouped(1, 2, 2);
    CpuKvCache cache(layout, kHeadDim);
    ResolvedPolicy policy = keep(2, 0, 0);
    policy.scope = Scope::layer;
    cache.set_policy(policy);
    cache.reserve(3);
    fill(cache, 2, 0, 3);
    for (int h = 0; h < 2; ++h) std::copy_n(std::array{0.0f, 1.0f, 2.0f}.data(), 3, cache.score(kSum, h));
    cache.set_pinned(1, 0, true);
    EXPECT_EQ(select_row(cache, 5), (std::vector<Eviction>{{0, 1, 5}, {1, 1, 5}}));
    EXPECT_EQ(cache.stored_positions(0), (std::vector<std::int32_t>{0, 2}));
}

TEST(Select, TheShortWayChoosesAsTheGeneralRule) {
    // One victim per row, by slot and by the general rule on the pooled scores, over scopes, pools and
    // windows, with ties.
    std::uint32_t state = 1;
    const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
    for (const Scope scope : {Scope::head, Scope::layer, Scope::shared})
        for (const Pool pool : {Pool::mean, Pool::sum, Pool::max})
            for (const auto& [sinks, recent] :
                 std::vector<std::pair<int, int>>{{0, 0}, {2, 3}, {0, 19}, {4, 16}}) {
                const KvLayout layout = KvLayout::grouped(2, 4, 2);
                CpuKvCache cache(layout, kHeadDim);
                ResolvedPolicy policy = keep(20, sinks, recent);
                policy.scope = scope;
                policy.pool = pool;
                cache.set_policy(policy);
                cache.reserve(21);
                for (int row = 0; row < 80; ++row) {
                    fill(cache, 4, row, row + 1);
                    for (int h = 0; h < 8; ++h)
                        for (int slot = 0; slot < cache.count(h / 2); ++slot)
                            cache.score(kSum, h)[slot] += static_cast<float>(next() % 8);
                    std::vector<Eviction> expected;
                    for (const Unit& unit : units_of(layout, scope)) {
                        UnitScores pooled;
                        pool_unit(cache, unit, pooled);
                        for (int g = unit.first; g < unit.last; g += unit.step)
                            for (int index : victims_of(pooled.positions, pooled.pooled, {}, policy, row))
                                expected.push_back({g, pooled.positions[to_index(index)], row});
                    }
                    ASSERT_EQ(select_row(cache, row), expected) << row;
                }
            }
}

// A formula is evaluated by slot where one token leaves and no scores are recorded, else in text order.
TEST(Select, AFormulaRanksBySlotAsInTextOrder) {
    std::uint32_t state = 1;
    const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
    for (const char* spec :
         {"knorm:budget=90", "key:budget=90,choose=(s/(age+1)),recent=50%", "random:budget=90,seed=5",
          "key:budget=90,sinks=3,choose=(age > 40 and not prompt ? -knorm*s : vnorm-log(s-2)),pool=max",
          "key:budget=90,scope=layer,choose=(s*count-position/8),pool=sum", "key:budget=90,choose=(0*s)",
          "key:budget=90,scope=layer,choose=(s-knorm)", "key:budget=90,choose=(s+slot/64),kv_dtype=bf16"}) {
        const KvLayout layout = KvLayout::grouped(2, 4, 2);
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, 30, 500);
        CpuKvCache cache(layout, kHeadDim);
        cache.set_policy(policy);
        cache.reserve(91);
        int n_evicted = 0;
        for (int row = 0; row < 240; ++row) {
            for (int g = 0; g < 4; ++g)
                write(cache, g, cache.append(g, row), static_cast<float>(next() % 32) - 15.3f);
            for (int h = 0; h < 8; ++h)
                if (float* score = cache.score(accumulator_of(policy), h))
                    for (int slot = 0; slot < cache.count(h / 2); ++slot)
                        score[slot] += static_cast<float>(next() % 8);
            const std::unique_ptr<KvCache> recorded = cache.clone();
            auto& other = static_cast<CpuKvCache&>(*recorded);
            RowValues values;
            values.offset = {0};
            for (int g = 0; g < 4; ++g) values.offset.push_back(values.offset.back() + cache.count(g));
            values.scores.resize(to_index(values.offset.back()));
            values.threshold.resize(4);
            UnitScores scratch;
            std::vector<int> victims;
            std::vector<Eviction> expected;
            for (const Unit& unit : units_of(layout, policy.scope))
                evict_unit(other, unit, row, Due::by_row, scratch, victims, &values, expected);
            ASSERT_EQ(select_row(cache, row), expected) << spec << ", row " << row;
            n_evicted += static_cast<int>(expected.size());
        }
        EXPECT_EQ(n_evicted, 4 * 150) << spec;
    }
}

// The length of a key follows it from slot to slot, and follows the type that it is stored in.
TEST(CpuKvCache, LengthsAreKeptWithTheTokensWhereASelectionNamesThem) {
    const KvLayout layout = KvLayout::grouped(2, 2, 2);
    CpuKvCache cache(layout, kHeadDim);
    const auto policy_of = [](const char* spec) { return resolve(parse_lane_spec(spec).policy, 8, 30); };
    const auto expect_lengths = [&](const CpuKvCache& of, bool keys, bool values) {
        for (int g = 0; g < 4; ++g)
            for (const auto& [q, rows, is_kept] : {std::tuple{Quantity::knorm, of.keys(g), keys},
                                                   std::tuple{Quantity::vnorm, of.values(g), values}}) {
                ASSERT_EQ(of.lengths(q, g) != nullptr, is_kept);
                for (int slot = 0; slot < of.count(g) && is_kept; ++slot)  // all channels are equal
                    ASSERT_EQ(of.lengths(q, g)[slot], 2 * std::abs(number_at(rows, slot, 0))) << slot;
            }
    };
    cache.set_policy(policy_of("h2o:budget=20,kv_dtype=f32"));
    cache.reserve(10);
    fill(cache, 4, 0, 10);
    const std::int64_t plain = cache.use().allocated_bytes;
    expect_lengths(cache, false, false);
    cache.set_policy(policy_of("knorm:budget=20,kv_dtype=f32"));
    expect_lengths(cache, true, false);
    EXPECT_LE(cache.use().allocated_bytes, plain + 4 * 10 * 4);
    cache.set_policy(policy_of("key:choose=(s*vnorm-knorm),budget=20,kv_dtype=f32"));
    expect_lengths(cache, true, true);
    EXPECT_EQ(cache.use().allocated_bytes, plain + 4 * 10 * 2 * 4);
    cache.evict(2, std::vector<int>{0, 3, 6});
    cache.reserve(12);
    fill(cache, 4, 10, 12);
    expect_lengths(cache, true, true);
    expect_lengths(static_cast<const CpuKvCache&>(*cache.clone()), true, true);
    cache.set_policy(policy_of("key:choose=(s*vnorm-knorm),budget=20,kv_dtype=bf16"));
    expect_lengths(cache, true, true);
    cache.set_policy(policy_of("knorm:budget=20,evict=prompt"));
    expect_lengths(cache, false, false);
}

TEST(Select, PoolsOverTheReadersOfTheUnit) {
    const KvLayout layout =
        KvLayout::grouped(1, 4, 2);  // heads 0, 1 read KV head 0; heads 2, 3 read KV head 1
    CpuKvCache cache(layout, kHeadDim);
    ResolvedPolicy policy;
    cache.set_policy(policy);
    cache.reserve(2);
    fill(cache, 2, 0, 2);
    const float scores[4][2] = {{1, 5}, {3, 1}, {2, 2}, {6, 0}};
    for (int h = 0; h < 4; ++h) std::copy_n(scores[h], 2, cache.score(kSum, h));
    UnitScores unit;
    pool_unit(cache, {0, 1}, unit);
    EXPECT_EQ(unit.pooled, (std::vector<float>{2, 3}));
    pool_unit(cache, {0, 2}, unit);
    EXPECT_EQ(unit.pooled, (std::vector<float>{3, 2}));
    policy.pool = Pool::max;
    cache.set_policy(policy);
    pool_unit(cache, {0, 1}, unit);
    EXPECT_EQ(unit.pooled, (std::vector<float>{3, 5}));
    policy.pool = Pool::sum;
    cache.set_policy(policy);
    cache.evict(0, std::vector<int>{0});  // KV head 0 no longer stores position 0
    pool_unit(cache, {0, 2}, unit);
    EXPECT_EQ(unit.positions, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(unit.pooled, (std::vector<float>{8, 8}));
}

}  // namespace
}  // namespace keyhole::cpu::test_cpu_cache
