// The kernels that share budgets between KV heads against the host's code, and the reach of values against
// double precision, over random caches and in any order of threads.
#include "engine/backend/cuda/choice_launch.h"
#include "engine/base/index.h"
#include "engine/policy/allocation.h"
#include "tests/reference/two_head_lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace keyhole::cuda::test_cuda_share {
namespace {

/// KV heads of two layers, each read by one query head, with slots in a random order.
struct Heads {
    int n_heads, stride;
    std::vector<std::vector<std::int32_t>> positions;  ///< by slot
    std::vector<std::vector<std::uint8_t>> pinned;
    std::vector<std::vector<float>> score;
    std::vector<std::int32_t> order;  ///< [heads, stride]
    std::vector<RowRule> rules;       ///< of each head
    std::vector<ShareRule> shares;
};

int below(std::mt19937& random, int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
}

Heads random_heads(std::mt19937& random, double floor, bool rounds, bool is_global) {
    Heads heads{2 * (1 + below(random, 4)), 40, {}, {}, {}, {}, {}, {}};
    heads.order.assign(to_index(heads.n_heads * heads.stride), -1);
    const int n_scores = 1 + below(random, 30);  // few: many are equal
    for (int g = 0; g < heads.n_heads; ++g) {
        const int n = 1 + below(random, heads.stride);
        std::vector<std::int32_t> slots(to_index(n)), positions(to_index(n));
        for (int i = 0; i < n; ++i) slots[to_index(i)] = i;
        std::shuffle(slots.begin(), slots.end(), random);
        std::vector<std::uint8_t> pinned(to_index(n));
        std::vector<float> score(to_index(n));
        for (int i = 0, position = 0; i < n; ++i, position += 1 + below(random, 3)) {
            const std::size_t slot = to_index(slots[to_index(i)]);
            heads.order[to_index(g * heads.stride + i)] = slots[to_index(i)];
            positions[slot] = position;
            pinned[slot] = below(random, 9) == 0 ? 1 : 0;
            score[slot] = below(random, 12) == 0 ? NAN : static_cast<float>(below(random, n_scores)) / 8;
        }
        heads.positions.push_back(positions);
        heads.pinned.push_back(pinned);
        heads.score.push_back(score);
        RowRule rule{};
        rule.stored = 1 + below(random, 30);
        rule.newest = below(random, 4);
        rule.sinks = below(random, 3);
        heads.rules.push_back(rule);
        const int half = heads.n_heads / 2, first = is_global || g < half ? 0 : half;
        heads.shares.push_back({floor, first, is_global || g >= half ? heads.n_heads : half,
                                below(random, 6) > 0 ? 1 : 0, rounds ? 1 : 0});
    }
    return heads;
}

/// Returns how many tokens leave each head, -1 where none is due, by policy/allocation.h.
std::vector<int> leave_on_host(const Heads& heads) {
    std::vector<int> leave(to_index(heads.n_heads), -1);
    for (int first = 0; first < heads.n_heads; first = heads.shares[to_index(first)].last) {
        std::vector<HeadShare> shares;
        std::vector<int> of;
        for (int g = first; g < heads.shares[to_index(first)].last; ++g) {
            if (heads.shares[to_index(g)].due == 0) continue;
            const auto& positions = heads.positions[to_index(g)];
            const RowRule& rule = heads.rules[to_index(g)];
            const int n = static_cast<int>(positions.size());
            HeadShare& share = shares.emplace_back();
            for (int i = 0; i < n - rule.newest; ++i) {
                const auto slot = to_index(heads.order[to_index(g * heads.stride + i)]);
                if (positions[slot] < rule.sinks || heads.pinned[to_index(g)][slot] != 0) continue;
                share.positions.push_back(positions[slot]);
                share.score.push_back(heads.score[to_index(g)][slot]);
            }
            share.budget = std::max(rule.stored - (n - static_cast<int>(share.positions.size())), 0);
            of.push_back(g);
        }
        const ShareRule& rule = heads.shares[to_index(first)];
        const std::vector<int> kept = share_budget(shares, rule.floor, rule.rounds != 0);
        for (std::size_t i = 0; i < of.size(); ++i)
            leave[to_index(of[i])] = static_cast<int>(shares[i].positions.size()) - kept[i];
    }
    return leave;
}

std::vector<int> leave_by_kernels(Heads& heads, int n_threads, unsigned seed) {
    const std::size_t n = to_index(heads.n_heads), n_slots = n * to_index(heads.stride);
    std::vector<DeviceHead<float>> device;
    std::vector<HeadScores> scores(n);
    std::vector<DeviceUnit> units;
    std::vector<std::int32_t> readers, offset = {0}, counts(5 * n, -1);
    for (std::size_t g = 0; g < n; ++g) {
        const auto i = static_cast<std::int32_t>(g), size = static_cast<std::int32_t>(heads.score[g].size());
        device.push_back({nullptr, nullptr, heads.positions[g].data(), heads.pinned[g].data(), size, size});
        scores[g].score[0] = heads.score[g].data();
        units.push_back({i, i + 1, i, 0});
        readers.push_back(i);
        offset.push_back(i + 1);
    }
    std::vector<ShareToken> found(n_slots, {NAN, NAN, -9, 0}), sorted = found;
    std::vector<double> part(n, NAN), rest = part;
    LaneView<float> lane{};
    lane.heads = device.data();
    lane.scores = scores.data();
    lane.units = units.data();
    lane.rules = heads.rules.data();
    lane.n_units = heads.n_heads;
    lane.list_stride = heads.stride;
    lane.order = heads.order.data();
    lane.shares = heads.shares.data();
    const auto of_kind = [&](std::size_t kind) { return counts.data() + kind * n; };
    lane.n_shared = of_kind(4);
    ChoiceShape shape;
    shape.max_units = heads.n_heads;
    shape.stride = heads.stride;
    launch_shares(&lane, {readers.data(), offset.data()}, shape, {},
                  {found.data(), sorted.data(), of_kind(0), of_kind(1), of_kind(2), of_kind(3), of_kind(4),
                   part.data(), rest.data()},
                  [&](const auto& kernel, const Grid& grid) { run_on_host(kernel, grid, n_threads, seed); });
    return {counts.begin() + static_cast<std::ptrdiff_t>(4 * n), counts.end()};
}

TEST(CudaShare, EachHeadLosesWhatTheHostSays) {
    std::mt19937 random(3);
    int n_leave = 0, n_given_on = 0;
    for (int round = 0; round < 2000; ++round) {
        const double floor = std::vector<double>{0, 0.2, 0.35, 0.5, 1}[to_index(below(random, 5))];
        const bool rounds = below(random, 3) == 0, is_global = below(random, 2) == 0;
        Heads heads = random_heads(random, floor, rounds, is_global);
        const std::vector<int> expected = leave_on_host(heads);
        const int n_threads = 32 << below(random, 3);
        ASSERT_EQ(leave_by_kernels(heads, n_threads, static_cast<unsigned>(round)), expected)
            << "round " << round << ", floor " << floor << (rounds ? ", rounds" : "");
        for (const int n : expected) n_leave += n > 0;
        n_given_on += std::count(expected.begin(), expected.end(), 0) > 0;
    }
    EXPECT_GT(n_leave, 2000);
    EXPECT_GT(n_given_on, 200);
}

TEST(CudaShare, ReachIsTheSumOverTheOutput) {
    constexpr int kDim = 24, kTokens = 45, kHeads = 4, kModel = 21, kCols = kHeads * kDim;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> values(kTokens * kDim), output(kModel * kCols);
    for (auto* list : {&values, &output})
        for (float& x : *list) x = normal(random);
    std::vector<std::int32_t> order(kTokens), positions(kTokens);
    for (int i = 0; i < kTokens; ++i) order[to_index(i)] = positions[to_index(i)] = kTokens - 1 - i;
    std::vector<std::int32_t> orders = order;
    orders.insert(orders.end(), order.begin(), order.end());
    std::vector<std::uint8_t> pinned(kTokens, 0);
    std::vector<DeviceHead<float>> heads(
        2, {nullptr, values.data(), positions.data(), pinned.data(), kTokens, kTokens});
    RowRule rule{};
    rule.evicts = 1;
    rule.stored = rule.due_at = 3;
    FormulaTable formula;
    formula.uses = std::uint64_t{1} << static_cast<int>(Quantity::wvnorm);
    const reference::TwoHeadLane lane(heads, rule, formula, orders, kTokens);
    const Elements<Stored> matrix{output.data(), DType::f32};
    std::vector<float> reach(2 * kTokens, NAN);
    const OutputReach<float> kernel{&lane.view, lane.table(), &matrix, reach.data(), 2,
                                    kTokens,    kDim,         kHeads,  kModel};
    run_on_host(kernel, {2, 1, 2}, 64, 7);
    for (int g = 0; g < 2; ++g)
        for (int i = 0; i < kTokens; ++i) {
            double sum = 0;
            for (int h = 2 * g; h < 2 * g + 2; ++h)
                for (int r = 0; r < kModel; ++r) {
                    double dot = 0;
                    for (int c = 0; c < kDim; ++c)
                        dot += double{output[to_index(r * kCols + h * kDim + c)]} *
                               values[to_index(order[to_index(i)] * kDim + c)];
                    sum += std::abs(dot) / 2;
                }
            EXPECT_NEAR(reach[to_index(g * kTokens + i)], sum, 1e-5 * sum) << g << ' ' << i;
        }
    // For rows it is kept by slot, and computed where it is due.
    std::vector<float> kept(2 * kTokens);
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i % 5 == 2 ? kReachDue : 1000.0f;
    for (std::size_t g = 0; g < 2; ++g) heads[g].reach = kept.data() + g * kTokens;
    OutputReach<float> of_rows = kernel;
    of_rows.reach = nullptr;
    of_rows.of_rows = 1;
    run_on_host(of_rows, {2, 1, 2}, 64, 8);
    for (std::size_t i = 0; i < kept.size(); ++i) {
        const std::size_t g = i / kTokens, in_order = kTokens - 1 - i % kTokens;
        EXPECT_EQ(kept[i], i % 5 == 2 ? reach[g * kTokens + in_order] : 1000.0f) << i;
    }
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_share
