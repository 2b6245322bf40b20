// Cases of what a cache moves and what a row packs.
#include "engine/backend/cuda/selftest_cases.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

namespace keyhole::cuda::selftest {

template <class T>
void rebuilding(Side& side) {
    const int n = 70, head_dim = 64;
    RowRule rule = plain_rule();
    rule.noise_kind = static_cast<int>(NoiseKind::gumbel);
    rule.noise_draw = static_cast<int>(NoiseDraw::token);
    const LaneCase<T> from(side, head_dim, n, rule, false, false), to(side, head_dim, n, rule, false, false);
    std::vector<std::int32_t> kept, offset = {0};
    for (int g = 0; g < 2; ++g) {
        for (int slot = g; slot < n; slot += g + 1) kept.push_back(slot);
        offset.push_back(static_cast<std::int32_t>(kept.size()));
    }
    const Buffer<std::int32_t> device_kept = side.up(kept), device_offset = side.up(offset);
    CopySlots<T> copy{};
    copy.from = from.heads.data();
    copy.to = to.heads.data();
    copy.from_scores = from.head_scores.data();
    copy.to_scores = to.head_scores.data();
    copy.kept = device_kept.data();
    copy.offset = device_offset.data();
    copy.table = from.table();
    for (int a = 0; a < kScores; ++a) copy.relative[a] = a == 1 ? 0 : a;
    copy.head_dim = head_dim;
    copy.spans = to.spans();
    side.executor->launch(copy, {2, 3}, 256);
    side.note(copy, 0, to.keys);
    side.note(copy, 0, to.values);
    side.note(copy, 0, to.positions);
    side.note(copy, 0, to.scores);
    side.note(copy, 0, to.noise);
    side.note(copy, 0, to.kept);
    side.note(copy, 0, to.reach);
    // Removes slots 0, 3 and 6 of the first head and slot 1 of the second.
    const Buffer<std::int32_t> moved = side.up(std::vector<std::int32_t>{67, 68, 69, 69}),
                               holes = side.up(std::vector<std::int32_t>{0, 3, 6, 1}),
                               of_head = side.up(std::vector<std::int32_t>{0, 3, 4});
    const MoveSlots<T> move{from.heads.data(), from.head_scores.data(), from.table(), moved.data(),
                            holes.data(),      of_head.data(),          head_dim};
    side.executor->launch(move, {2}, 64);
    side.note(move, 0, from.keys);
    side.note(move, 0, from.values);
    side.note(move, 0, from.positions);
    side.note(move, 0, from.scores);
    side.note(move, 0, from.noise);
    side.note(move, 0, from.reach);
    const DrawNoise<T> draw{to.heads.data(), to.head_scores.data(), to.rules.data(), to.table(), 4};
    side.executor->launch(draw, {2, 1}, 256);
    side.note(draw, kSumTolerance, to.noise);
    // Stores a prompt of n tokens in the same heads.
    const Buffer<float> keys = side.up(normal(2 * n * head_dim, 31)),
                        values = side.up(normal(2 * n * head_dim, 32)),
                        score = side.up(normal(2 * 4 * n, 33));
    const Buffer<std::int32_t> streams =
        side.up(std::vector<std::int32_t>{0, -1, 1, 0, 1, 1, -1, 0, 1, 0, 0, -1, 1, 1, 0, 1, -1, 0, 0, 1});
    const int n_win_rows = LaneCase<T>::kWindow + 2;
    const Buffer<float> win_rows = side.up(normal(4 * n_win_rows * n, 34));
    const KeepPrompt<T> keep{keys.data(),
                             values.data(),
                             score.data(),
                             streams.data(),
                             to.heads.data(),
                             to.head_scores.data(),
                             device_kept.data(),
                             device_offset.data(),
                             n,
                             head_dim,
                             4,
                             2,
                             nullptr,
                             win_rows.data(),
                             n_win_rows,
                             0,
                             to.spans()};
    side.executor->launch(keep, {2, 3}, 256);
    side.note(keep, 0, to.kept);
    side.note(keep, 0, to.keys);
    side.note(keep, 0, to.values);
    side.note(keep, 0, to.scores);
    side.note(keep, 0, to.positions);
    side.note(keep, 0, to.reach);
}

/// Packs rows of two lanes: one out of text order, over two windows of positions, and one in order without
/// scores.
void packing(Side& side) {
    constexpr int kLanes = 2, kKv = 2, kHeads = 4, kStride = 640, kEntries = 1208;
    const std::array<int, kKv> n = {601, 3};
    std::mt19937 random(9);
    std::vector<std::int32_t> positions(kKv * kStride, -1);
    for (int g = 0; g < kKv; ++g) {
        const auto begin = positions.begin() + g * kStride;
        for (int i = 0; i < n[to_index(g)]; ++i) begin[i] = 2 * OrderSlots::kWindow / n[to_index(g)] * i;
        std::shuffle(begin, begin + n[to_index(g)], random);
    }
    std::vector<float> probabilities = normal(kLanes * kHeads * kStride, 51, 6);
    for (std::size_t i = 0; i < probabilities.size(); ++i) {
        float& p = probabilities[i];  // some are halfway between two numbers in fp16, some below the least
        p = i % 7 == 0 ? 1 + static_cast<float>(i % 64) / 2048 : std::exp(-std::abs(3 * p));
    }
    const Buffer<std::int32_t> at = side.up(positions),
                               of_kv = side.up(std::vector<std::int32_t>{0, 601, 604}),
                               kv_of_head = side.up(std::vector<std::int32_t>{0, 1, 1, 0}),
                               unit_of_head = side.up(std::vector<std::int32_t>{1, 0}),
                               order = side.up(std::vector<std::int32_t>(kKv * kStride, 0));
    const Buffer<std::int64_t> of_head = side.up(std::vector<std::int64_t>{0, 601, 604, 607, kEntries});
    const Buffer<AnyHead> heads =
        side.up(std::vector<AnyHead>{{nullptr, nullptr, at.data(), nullptr, n[0], kStride},
                                     {nullptr, nullptr, at.data() + kStride, nullptr, n[1], kStride}});
    AnyLane lane{};
    lane.heads = heads.data();
    lane.unit_of_head = unit_of_head.data();
    const Buffer<AnyLane> lanes = side.up(std::vector<AnyLane>(kLanes, lane));
    const Buffer<float> row = side.up(probabilities), pooled = side.up(normal(kLanes * kKv * kStride, 52)),
                        scores = side.floats(604), first = side.floats(kLanes * kHeads * PackRow::kFirst);
    const Buffer<Fp16> attention = side.up(std::vector<Fp16>(kLanes * kEntries, Fp16{0xc000}));
    const Buffer<PackedLane> packed = side.up(std::vector<PackedLane>{
        {of_kv.data(), of_head.data(), order.data(), attention.data(), first.data(), scores.data()},
        {of_kv.data(), of_head.data(), nullptr, attention.data() + kEntries,
         first.data() + kHeads * PackRow::kFirst, nullptr}});
    const OrderSlots order_slots{lanes.data(), packed.data(), kStride};
    side.executor->launch(order_slots, {kKv, kLanes, 2}, 256);
    side.note(order_slots, 0, order);
    const PackRow pack{lanes.data(), packed.data(), kv_of_head.data(), row.data(), pooled.data(), kHeads,
                       kKv,          kStride};
    side.executor->launch(pack, {3, kHeads + kKv, kLanes}, kSplit);
    side.note(pack, 0, attention);
    side.note(pack, 0, first);
    side.note(pack, 0, scores);
}

template void rebuilding<float>(Side&);
template void rebuilding<Fp16>(Side&);
template void rebuilding<Bf16>(Side&);

}  // namespace keyhole::cuda::selftest
