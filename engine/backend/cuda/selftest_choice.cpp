// Cases of formulas, shared budgets and evictions.
#include "engine/backend/cuda/selftest_cases.h"

#include <algorithm>

namespace keyhole::cuda::selftest {

namespace {

template <class T>
void selection(Side& side, int stored_after, int dropped, bool one_unit, int unit = 1) {
    const int n = 300;
    RowRule rule = plain_rule();
    rule.stored = stored_after;
    rule.newest = 20;
    rule.sinks = 5;
    rule.evicts = rule.needs_scores = 1;
    rule.dropped_position = dropped;
    rule.unit = unit;
    const LaneCase<T> c(side, 64, n, rule, false, one_unit);
    const int kv = LaneCase<T>::kKv, most = 256, max_units = 2;
    const Buffer<float> pooled = side.floats(max_units * c.capacity), threshold = side.floats(max_units);
    const Buffer<std::uint8_t> leaves =
        side.up(std::vector<std::uint8_t>(to_index(max_units * c.capacity), 9));
    const Buffer<Leaving> leaving = side.up(std::vector<Leaving>(to_index(max_units), Leaving{0, 0}));
    const Buffer<std::int32_t> victims = side.up(std::vector<std::int32_t>(to_index(kv * most), -1)),
                               n_victims = side.up(std::vector<std::int32_t>(to_index(kv), -1));
    const Buffer<BlockRank> blocks =
        side.up(std::vector<BlockRank>(to_index(max_units * c.capacity), {-7, -7, -7, 0}));
    SelectVictims<T> select{c.lane.data(),  c.table(),        pooled.data(), leaves.data(),
                            leaving.data(), threshold.data(), max_units,     c.capacity};
    if (unit > 1) select.blocks = blocks.data();
    side.executor->launch(select, {max_units, 1}, 256);
    side.note(select, 0, pooled);
    side.note(select, 0, threshold);
    side.note(kernel_name<SelectVictims<T>>(), 0, reinterpret_cast<const std::int32_t*>(leaving.data()), 4);
    side.note(select, 0, leaves);
    const CompactHead<T> compact{c.lane.data(),
                                 c.table(),
                                 leaves.data(),
                                 leaving.data(),
                                 victims.data(),
                                 n_victims.data(),
                                 max_units,
                                 c.capacity,
                                 kv,
                                 most,
                                 64};
    side.executor->launch(compact, {kv, 1}, 64);
    side.note(compact, 0, victims);
    side.note(compact, 0, n_victims);
    side.note(compact, 0, c.positions);
    side.note(compact, 0, c.keys);
    side.note(compact, 0, c.values);
    side.note(compact, 0, c.scores);
    side.note(compact, 0, c.kept);
}

constexpr int kChoiceLists = 4;  // of the formulas below

/// Returns keydiff * knorm + smooth(s, avg, 5) - u + win * redundancy + caote + lag + wvnorm + expected +
/// tri; without smoothing, s as it is.
FormulaTable chosen_formula(bool smooths) {
    using Code = FormulaCode;
    FormulaTable table;
    const Code smoothing = smooths ? Code::smooth_average : Code::absolute;
    const FormulaOp ops[] = {
        {Code::quantity, Quantity::keydiff, 0, 0, 0},  {Code::quantity, Quantity::knorm, 1, 0, 0},
        {Code::multiply, Quantity::row, 0, 0, 0},      {Code::quantity, Quantity::s, 1, 0, 0},
        {smoothing, Quantity::row, 1, 5, 0},           {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::u, 1, 0, 0},        {Code::subtract, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::win, 1, 0, 0},      {Code::quantity, Quantity::redundancy, 2, 0, 0},
        {Code::multiply, Quantity::row, 1, 0, 0},      {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::caote, 1, 0, 0},    {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::lag, 1, 0, 0},      {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::wvnorm, 1, 0, 0},   {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::expected, 1, 0, 0}, {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::tri, 1, 0, 0},      {Code::add, Quantity::row, 0, 0, 0}};
    constexpr int kOps = static_cast<int>(std::size(ops));
    const FormulaStep of_smoothing[] = {
        {0, 4, 0, 0}, {4, 5, 0, 0}, {4, 5, 1, 0}, {4, 5, 2, 0}, {5, kOps, 0, 0}};
    table.n_lists = kChoiceLists;
    for (const FormulaOp& op : ops) table.ops[table.n_ops++] = op;
    for (const FormulaStep& step : of_smoothing)
        if (smooths) table.steps[table.n_steps++] = step;
    if (!smooths) table.steps[table.n_steps++] = {0, kOps, 0, 0};
    for (const FormulaOp& op : ops)
        if (op.code == Code::quantity) table.uses |= std::uint64_t{1} << static_cast<int>(op.quantity);
    return table;
}

}  // namespace

FormulaTable scoring_formula() {
    using Code = FormulaCode;
    FormulaTable table;
    const FormulaOp ops[] = {
        {Code::quantity, Quantity::s, 0, 0, 0},   {Code::constant, Quantity::row, 1, 0, 0.5f},
        {Code::multiply, Quantity::row, 0, 0, 0}, {Code::quantity, Quantity::p, 1, 0, 0},
        {Code::add, Quantity::row, 0, 0, 0},      {Code::quantity, Quantity::ptau, 1, 0, 0},
        {Code::quantity, Quantity::age, 2, 0, 0}, {Code::divide, Quantity::row, 1, 0, 0},
        {Code::add, Quantity::row, 0, 0, 0}};
    for (const FormulaOp& op : ops) table.ops[table.n_ops++] = op;
    table.n_lists = 4;
    return table;
}

namespace {

/// Returns position < 20.
FormulaTable protecting_formula() {
    FormulaTable table;
    table.n_lists = kChoiceLists;
    table.n_ops = 3;
    table.ops[0] = {FormulaCode::quantity, Quantity::position, 0, 0, 0};
    table.ops[1] = {FormulaCode::constant, Quantity::row, 1, 0, 20};
    table.ops[2] = {FormulaCode::less, Quantity::row, 0, 0, 0};
    table.n_steps = 1;
    table.steps[0] = {0, 3, 0, 0};
    table.uses = std::uint64_t{1} << static_cast<int>(Quantity::position);
    return table;
}

/// Folds scores by a formula, from logits and sums that are as good as any.
template <class T>
void formula_fold(Side& side, const LaneCase<T>& c, const Buffer<LaneView<T>>& lane) {
    const int heads = LaneCase<T>::kHeads, splits = (c.capacity + kSplit - 1) / kSplit;
    const std::int64_t of_lane = std::int64_t{heads} * c.capacity;
    const Buffer<float> logits = side.up(normal(of_lane, 31)), tempered = side.up(normal(of_lane, 32));
    const Buffer<SplitSum> totals = side.up(std::vector<SplitSum>(to_index(heads), {3, 90, 3, 80}));
    const FoldRow<T> fold{lane.data(),
                          c.kv_of_head.data(),
                          {nullptr, 0},
                          {logits.data(), of_lane},
                          {tempered.data(), of_lane},
                          {totals.data(), heads},
                          0,
                          c.capacity};
    const FoldByFormula<T> by_formula{fold, heads, heads / LaneCase<T>::kKv, c.head_dim};
    side.executor->launch(by_formula, {splits, heads, 1}, kSplit);
    side.note(by_formula, 5e-6, c.scores);
}

/// Memory of two KV heads that share their budgets.
struct ShareCase {
    Buffer<ShareRule> rules;
    Buffer<ShareToken> tokens;
    Buffer<std::int32_t> counts;
    Buffer<double> parts;
    ShareMemory memory;

    ShareCase(Side& side, int capacity, double floor, bool rounds)
        : rules(side.up(std::vector<ShareRule>(2, {floor, 0, 2, 1, rounds ? 1 : 0}))),
          tokens(side.up(std::vector<ShareToken>(to_index(4 * capacity), {-7, -7, -7, -7}))),
          counts(side.up(std::vector<std::int32_t>(10, -7))),
          parts(side.up(std::vector<double>(4, -7))) {
        const auto of_kind = [&](int kind) { return counts.data() + 2 * kind; };
        memory = {tokens.data(),   tokens.data() + std::int64_t{2} * capacity,
                  of_kind(0),      of_kind(1),
                  of_kind(2),      of_kind(3),
                  of_kind(4),      parts.data(),
                  parts.data() + 2};
    }
    /// Notes what the kernels wrote.
    template <class T>
    void note(Side& side) const {
        side.note(kernel_name<SortShares<T>>(), 0, reinterpret_cast<const std::int32_t*>(tokens.data()),
                  4 * tokens.size());
        side.note(kernel_name<SortShares<T>>(), 0, memory.n_free, 2);
        side.note(kernel_name<ShareBudgets>(), 0, parts.data(), 4);
        for (const auto* of_heads : {memory.kept, memory.missing})
            side.note(kernel_name<ShareBudgets>(), 0, of_heads, 2);
        for (const auto* of_heads : {memory.best, memory.leave})
            side.note(kernel_name<CountBest>(), 0, of_heads, 2);
    }
};

/// One of two KV heads stores n_second tokens, fewer than its part: the other one gets the rest.
template <class T>
void sharing(Side& side, int n_second, double floor, bool rounds) {
    RowRule rule = plain_rule();
    rule.stored = 150;
    rule.newest = 20;
    rule.sinks = 5;
    rule.evicts = 1;
    const LaneCase<T> c(side, 64, 300, rule, false, false);
    std::vector<DeviceHead<T>> stored = side.down(c.heads.data(), 2);
    stored[1].count = n_second;
    const Buffer<DeviceHead<T>> heads = side.up(stored);
    const ShareCase shares(side, c.capacity, floor, rounds);
    LaneView<T> view = c.view;
    view.heads = heads.data();
    view.shares = shares.rules.data();
    view.n_shared = shares.memory.leave;
    const Buffer<LaneView<T>> lane = side.up(std::vector<LaneView<T>>{view});
    ChoiceShape shape;
    shape.max_units = 2;
    shape.stride = c.capacity;
    launch_shares(lane.data(), c.table(), shape, {}, shares.memory,
                  [&](const auto& kernel, const Grid& grid) { side.executor->launch(kernel, grid, 256); });
    shares.note<T>(side);
}

/// A calibration's statistics of random queries. Not all channels turn.
struct QueryCase {
    RotatedPairs pairs;
    Buffer<double> turns, scales, lacks;
    Buffer<float> mean, covariance;
    Buffer<LaneQueries> queries;

    QueryCase(Side& side, int n_heads, int head_dim, bool interleaved)
        : pairs{head_dim / 2 - 4, interleaved ? 1 : 0},
          turns(doubles(side, 4 * pairs.n, 61)),
          scales(side.up(std::vector<double>(to_index(n_heads), 1 / std::sqrt(double(head_dim))))),
          lacks(doubles(side, n_heads * pairs.n, 62)),
          mean(side.up(normal(n_heads * head_dim, 63))),
          covariance(side.up(normal(n_heads * head_dim * head_dim, 64))),
          queries(side.up(std::vector<LaneQueries>{{turns.data(), turns.data() + 2 * pairs.n, scales.data(),
                                                    mean.data(), covariance.data(), lacks.data(), pairs}})) {}

    static Buffer<double> doubles(Side& side, int n, unsigned seed) {
        const std::vector<float> from = normal(n, seed);
        return side.up(std::vector<double>(from.begin(), from.end()));
    }
};

template <class T>
void choice(Side& side, bool one_unit, bool as_rkv_code = false) {
    const int n = 300, head_dim = 64, kv = LaneCase<T>::kKv, max_units = 2;
    RowRule rule = plain_rule();
    rule.stored = 250;
    rule.due_at = 251;
    rule.newest = 20;
    rule.sinks = 5;
    rule.evicts = rule.needs_scores = 1;
    rule.window = 24;
    rule.as_rkv_code = as_rkv_code ? 1 : 0;
    rule.score = 3;
    const LaneCase<T> c(side, head_dim, n, rule, false, one_unit);
    const Buffer<FormulaTable> formulas = side.up(std::vector<FormulaTable>{
        chosen_formula(true), protecting_formula(), chosen_formula(false), scoring_formula()});
    LaneView<T> view = c.view;
    view.choose = formulas.data();
    view.protect = formulas.data() + 1;
    view.unsmoothed = formulas.data() + 2;
    view.score = formulas.data();
    const QueryCase by_queries(side, LaneCase<T>::kHeads, head_dim, one_unit);
    view.queries = by_queries.queries.data();
    const ShareCase shares(side, c.capacity, 0.2, false);
    if (!one_unit) {
        view.shares = shares.rules.data();
        view.n_shared = shares.memory.leave;
    }
    const Buffer<LaneView<T>> lane = side.up(std::vector<LaneView<T>>{view});
    const Buffer<float> lengths = side.floats(kv * c.capacity), directions = side.floats(kv * kDirection),
                        pooled = side.floats(max_units * c.capacity), threshold = side.floats(max_units),
                        lists = side.floats(max_units * kChoiceLists * c.capacity),
                        ties = side.floats(max_units * c.capacity), likeness = side.floats(kv * c.capacity),
                        errors = side.floats(kv * c.capacity), lags = side.floats(kv * c.capacity),
                        reach = side.floats(kv * c.capacity), expected = side.floats(kv * c.capacity),
                        tri = side.floats(kv * c.capacity), code_win = side.floats(kv * c.capacity);
    const std::vector<double> wide(to_index(kv * c.capacity), NAN);
    const Buffer<double> deviations = side.up(wide), lag_values = side.up(wide), largest = side.up(wide),
                         win_sums = side.up(wide),
                         logits =
                             side.up(std::vector<double>(to_index(LaneCase<T>::kHeads * c.capacity), NAN));
    const Buffer<std::int32_t> similar = side.up(std::vector<std::int32_t>(to_index(kv * c.capacity), -2));
    const std::vector<std::uint8_t> bytes(to_index(max_units * c.capacity), 9);
    const Buffer<std::uint8_t> competes = side.up(bytes), guarded = side.up(bytes), leaves = side.up(bytes);
    const Buffer<Leaving> leaving = side.up(std::vector<Leaving>(to_index(max_units), Leaving{0, 0}));
    ChoiceShape shape;
    shape.max_units = max_units;
    shape.n_lists = kChoiceLists;
    shape.stride = c.capacity;
    shape.n_kv_heads = shape.kv_stride = kv;
    shape.n_heads = LaneCase<T>::kHeads;
    shape.head_dim = head_dim;
    shape.group = LaneCase<T>::kHeads / kv;
    shape.n_readers = LaneCase<T>::kHeads;
    shape.d_model = 20;  // the last tile of OutputReach is not whole
    const Buffer<std::uint8_t> output =
        side.up(random_blocks(DType::q4_k, std::int64_t{shape.d_model} * shape.n_heads * head_dim, 9));
    const int output_cols = shape.n_heads * head_dim;
    const Buffer<std::byte> laid = side.up(random_laid(DType::q5_k, shape.d_model, output_cols, 9));
    const Buffer<Elements<Stored>> outputs = side.up(
        std::vector<Elements<Stored>>{one_unit ? Elements<Stored>{laid.data(), DType::q5_k, output_cols}
                                               : Elements<Stored>{output.data(), DType::q4_k}});
    const ChoiceMemory memory{pooled.data(),   lists.data(),      ties.data(),       competes.data(),
                              guarded.data(),  lengths.data(),    directions.data(), likeness.data(),
                              similar.data(),  errors.data(),     reach.data(),      outputs.data(),
                              lags.data(),     deviations.data(), lag_values.data(), logits.data(),
                              expected.data(), tri.data(),        largest.data(),    win_sums.data(),
                              code_win.data()};
    const auto launch = [&](const auto& kernel, const Grid& grid) {
        side.executor->launch(kernel, grid, 256);
    };
    launch_choice(lane.data(), c.table(), shape, memory, launch);
    if (!one_unit) launch_shares(lane.data(), c.table(), shape, memory, shares.memory, launch);
    side.note(kernel_name<KeyDirections<T>>(), 0, lengths.data(), lengths.size());
    side.note(kernel_name<KeyDirections<T>>(), 0, directions.data(), directions.size());
    side.note(kernel_name<SimilarKeys<T>>(), 0, similar.data(), similar.size());
    side.note(kernel_name<KeyLikeness<T>>(), 0, likeness.data(), likeness.size());
    side.note(kernel_name<ShareLikeness<T>>(), 0, likeness.data(), likeness.size());
    if (as_rkv_code) {
        side.note(kernel_name<WinOfLogits>(), 0, largest.data(), largest.size());
        side.note(kernel_name<WinOfLogits>(), 0, win_sums.data(), win_sums.size());
        side.note(kernel_name<WinOfLogits>(), 0, code_win.data(), code_win.size());
    }
    side.note(kernel_name<OutputErrors<T>>(), 0, errors.data(), errors.size());
    side.note(kernel_name<OutputReach<T>>(), 0, reach.data(), reach.size());
    using Reach = OutputReach<T>;
    const Reach of_rows{lane.data(), c.table(),           outputs.data(), nullptr, kv, c.capacity,
                        head_dim,    LaneCase<T>::kHeads, shape.d_model,  0,       1};
    side.executor->launch(of_rows, {kv, 1, (c.capacity + Reach::kTokens - 1) / Reach::kTokens}, 256);
    side.note(of_rows, 0, c.reach);
    side.note(kernel_name<LagRanks<T>>(), 0, lags.data(), lags.size());
    side.note(kernel_name<QueryLogits<T>>(), 0, logits.data(), logits.size());
    for (const auto* floats : {&expected, &tri})
        side.note(kernel_name<QueryRanks>(), 0, floats->data(), floats->size());
    for (const auto* floats : {&pooled, &ties})
        side.note(kernel_name<ChooseScores<T>>(), 0, floats->data(), floats->size());
    for (const auto* flags : {&competes, &guarded})
        side.note(kernel_name<ChooseScores<T>>(), 0, flags->data(), flags->size());
    if (!one_unit) shares.note<T>(side);
    const SelectVictims<T> select{lane.data(),      c.table(), pooled.data(), leaves.data(),  leaving.data(),
                                  threshold.data(), max_units, c.capacity,    guarded.data(), ties.data()};
    side.executor->launch(select, {max_units, 1}, 256);
    side.note(select, 0, threshold);
    side.note(select, 0, leaves);
    formula_fold(side, c, lane);
}

}  // namespace

template <class T>
void selection_cases(Side& side) {
    selection<T>(side, 299, -1, false);
    selection<T>(side, 250, -1, true);
    selection<T>(side, 300, 2 * 280, false);
    selection<T>(side, 290, 2 * 280, true);
    selection<T>(side, 290, -1, true, 24);  // positions in steps of 2: 12 tokens a block
}

template <class T>
void sharing_cases(Side& side) {
    sharing<T>(side, 300, 0.35, false);
    sharing<T>(side, 40, 0.2, false);
    sharing<T>(side, 240, 0.35, true);
}

template <class T>
void choice_cases(Side& side, ChoiceUnits units) {
    choice<T>(side, units == ChoiceUnits::one, units == ChoiceUnits::as_rkv_code);
}

template void selection_cases<float>(Side&);
template void selection_cases<Fp16>(Side&);
template void selection_cases<Bf16>(Side&);
template void sharing_cases<float>(Side&);
template void sharing_cases<Fp16>(Side&);
template void sharing_cases<Bf16>(Side&);
template void choice_cases<float>(Side&, ChoiceUnits);
template void choice_cases<Fp16>(Side&, ChoiceUnits);
template void choice_cases<Bf16>(Side&, ChoiceUnits);

}  // namespace keyhole::cuda::selftest
