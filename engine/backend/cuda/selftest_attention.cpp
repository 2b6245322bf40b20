// Cases of attention: of a row, of a tile of a prompt, and of a whole prompt.
#include "engine/backend/cuda/selftest_cases.h"

#include <algorithm>

namespace keyhole::cuda::selftest {

namespace {

/// The pages of a lane: one KV head reads five of 4 tokens with its own, the other nine of one, any of them.
/// Every other one of these is empty.
struct Pages {
    int stride;
    Buffer<PageRule> rules;
    Buffer<float> extremes, bounds;
    Buffer<std::int32_t> n_tokens;
    Buffer<std::uint8_t> read;
    LanePages of_lane;

    Pages(Side& side, int kv, int heads, int head_dim, int row)
        : stride(row + 1),
          rules(side.up(std::vector<PageRule>{{4, 5, 1, 0}, {1, 9, 0, 0}})),
          extremes(side.floats(std::int64_t{kv} * head_dim * 2 * stride)),
          bounds(side.floats(std::int64_t{heads} * stride)),
          n_tokens(side.up(std::vector<std::int32_t>(to_index(kv * stride)))),
          read(side.up(std::vector<std::uint8_t>(to_index(heads * stride)))),
          of_lane{rules.data(), extremes.data(), n_tokens.data(), stride, 0} {}
};

template <class T>
void choose_pages(Side& side, AttendSplit<T>& attend, const Pages& pages, int kv) {
    const SummarisePages<T> summarise{attend.lanes, attend.head_dim};
    side.executor->launch(summarise, {SummarisePages<T>::kBlocks, kv, 1}, 64);
    side.note(summarise, 0, pages.extremes);
    side.note(summarise, 0, pages.n_tokens);
    const Grid grid{(pages.stride + kSplit - 1) / kSplit, attend.n_heads, 1};
    const BoundPages<T> bound{attend, pages.bounds.data(), pages.stride};
    side.executor->launch(bound, grid, kSplit);
    side.note(bound, rounding<T>, pages.bounds);
    const HeadBuffer<std::uint8_t> read{pages.read.data(), 0};
    const ChoosePages<T> choose{attend.lanes, attend.kv_of_head, pages.bounds.data(),
                                read,         attend.n_heads,    pages.stride};
    side.executor->launch(choose, {1, attend.n_heads, 1}, ChoosePages<T>::kThreads);
    side.note(choose, 0, pages.read);
    attend.read = {pages.read.data(), 0};
    attend.page_stride = pages.stride;
}

/// Runs the kernels of a row, one after the other, and notes the output of each.
template <class T>
void attention(Side& side, int head_dim, int n, RowRule rule, bool turned, bool model = false,
               bool by_pages = false) {
    const LaneCase<T> c(side, head_dim, n, rule, turned, false);
    const int heads = LaneCase<T>::kHeads, kv = LaneCase<T>::kKv, splits = (c.capacity + kSplit - 1) / kSplit;
    const std::int64_t of_lane = std::int64_t{heads} * c.capacity;
    const Pages pages(side, kv, heads, head_dim, c.row);
    LaneView<T> view = c.view;
    if (by_pages) view.pages = pages.of_lane;
    const Buffer<LaneView<T>> lane = side.up(std::vector<LaneView<T>>{view});
    const BeginRow<T> begin{lane.data(), c.table(), heads};
    side.executor->launch(begin, {kv, 1}, 32);
    side.note(begin, kSumTolerance, c.noise);
    side.note(begin, 0, c.positions);
    side.note(begin, 0, c.reach);
    const Buffer<float> q = side.up(normal(heads * head_dim, 21, 2)), k = side.up(normal(kv * head_dim, 22)),
                        v = side.up(normal(kv * head_dim, 23));
    // With `model`, heads use every feature of any family. No model has both ALiBi and rotation, but the
    // kernel reads both.
    const Buffer<float> gains = side.up(normal(head_dim, 24)),
                        slopes = side.up(std::vector<float>{0.5f, 0.25f, 0.1f, 0});
    HeadRule heads_are{};
    heads_are.magnitude = 1;
    heads_are.dims = heads_are.head_dim = head_dim;
    if (model) heads_are = {gains.data(), gains.data(), 1.5f, 1e-5f, 1.25f, head_dim / 2, 1, head_dim};
    const Buffer<float> raw_keys = side.floats(kv * head_dim);
    const Buffer<float> logits = side.floats(of_lane), tempered = side.floats(of_lane),
                        noise = side.floats(of_lane),
                        partial = side.floats(std::int64_t{heads} * splits * head_dim),
                        p = side.floats(of_lane), out = side.floats(heads * head_dim);
    const Buffer<SplitSum> sums = side.up(std::vector<SplitSum>(to_index(heads * splits))),
                           totals = side.up(std::vector<SplitSum>(to_index(heads)));
    const Buffer<std::uint32_t> n_done = side.up(std::vector<std::uint32_t>(to_index(heads)));
    AttendSplit<T> attend{};
    attend.q = q.data();
    attend.k = k.data();
    attend.v = v.data();
    attend.lanes = lane.data();
    attend.kv_of_head = c.kv_of_head.data();
    attend.logits = {logits.data(), of_lane};
    attend.tempered = {tempered.data(), of_lane};
    attend.noise = {noise.data(), of_lane};
    attend.sums = sums.data();
    attend.partial_values = partial.data();
    attend.n_done = n_done.data();
    attend.out = out.data();
    attend.totals = {totals.data(), heads};
    attend.n_heads = heads;
    attend.head_dim = head_dim;
    attend.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    attend.row_stride = c.capacity;
    attend.max_splits = splits;
    attend.rotations = c.rotations.data();
    attend.finish = heads_are;
    if (model) attend.slopes = slopes.data();
    if (model) attend.window = n;
    if (model) attend.raw_keys = raw_keys.data();
    attend.n_kv = kv;
    if (by_pages) choose_pages(side, attend, pages, kv);
    side.executor->launch(attend, {splits, heads, 1}, kSplit);
    side.note(attend, model ? rounding<T> : 0, c.keys);
    side.note(attend, 0, c.values);
    if (model) side.note(attend, kSumTolerance, raw_keys);
    side.note(attend, 5e-6, out);
    // A layer that borrows: it reads its own token's key before rotation, and counts blocks anew.
    attend.k = attend.v = nullptr;
    if (by_pages) choose_pages(side, attend, pages, kv);
    side.executor->clear(out.data(), out.size_bytes());
    side.executor->launch(attend, {splits, heads, 1}, kSplit);
    side.note(attend, 5e-6, out);
    side.note(attend, 0, n_done);
    side.note(attend, kSumTolerance, logits);
    side.note(attend, kSumTolerance, tempered);
    side.note(attend, kSumTolerance, noise);
    side.note(kernel_name<AttendSplit<T>>(), kSumTolerance, reinterpret_cast<const float*>(sums.data()),
              sums.size() * 4);
    side.note(kernel_name<AttendSplit<T>>(), 5e-6, reinterpret_cast<const float*>(totals.data()),
              totals.size() * 4);
    const FoldRow<T> fold{
        lane.data(), c.kv_of_head.data(), {p.data(), of_lane}, attend.logits, attend.tempered, attend.totals,
        0,           c.capacity};
    side.executor->launch(fold, {splits, heads, 1}, kSplit);
    side.note(fold, 5e-6, p);
    side.note(fold, 5e-6, c.kept);
    // A score rounded to bf16 may round either way.
    side.note(fold, rule.score_dtype == static_cast<int>(ScoreType::fp32) ? 5e-6 : 8e-3, c.scores);
}

}  // namespace

template <class T>
void attention_cases(Side& side) {
    attention<T>(side, 64, 130, plain_rule(), true, true);
    attention<T>(side, 64, 1, plain_rule(), false);
    attention<T>(side, 80, 255, plain_rule(), false);
    attention<T>(side, 64, 600, plain_rule(), false, true, true);
    RowRule noisy = plain_rule();
    noisy.tempers = 1;
    noisy.tau = 1.75f;
    noisy.gain = 0.5f;
    noisy.weight = 0.25f;
    noisy.noise_kind = static_cast<int>(NoiseKind::gumbel);
    noisy.noise_draw = static_cast<int>(NoiseDraw::token);
    noisy.hidden_position = 6;
    noisy.as_rkv_code = 1;
    attention<T>(side, 128, 600, noisy, false);
    noisy.noise_kind = static_cast<int>(NoiseKind::gaussian);
    noisy.noise_draw = static_cast<int>(NoiseDraw::row);
    noisy.dilation = 2;
    noisy.as_rkv_code = 0;
    noisy.span = 50;
    noisy.score_dtype = static_cast<int>(ScoreType::bf16);
    attention<T>(side, 16, 300, noisy, true);
}

void prompt(Side& side) {
    const int n = 300, heads = 4, kv = 2, head_dim = 16, first = 171, rows = 33, last = first + rows;
    const Buffer<float> q = side.up(normal(n * heads * head_dim, 1)),
                        k = side.up(normal(n * kv * head_dim, 2)), v = side.up(normal(n * kv * head_dim, 3)),
                        keys = side.floats(n * kv * head_dim), values = side.floats(n * kv * head_dim),
                        rotations = side.up(normal(n * head_dim, 4)), raw = side.floats(n * kv * head_dim);
    HeadRule heads_are{};
    heads_are.magnitude = 1;
    heads_are.clip = 2;
    heads_are.dims = heads_are.head_dim = head_dim;
    const RotatePrompt rotate{
        q.data(), k.data(), v.data(), keys.data(), values.data(), rotations.data(), heads_are,
        n,        heads,    kv,       0,           raw.data()};
    side.executor->launch(rotate, {n, heads + kv}, 64);
    side.note(rotate, 0, q);
    side.note(rotate, 0, keys);
    side.note(rotate, 0, values);
    side.note(rotate, 0, raw);
    heads_are.q_norm = heads_are.k_norm = rotations.data();
    heads_are.eps = 1e-5f;
    heads_are.interleaved = 1;
    const RotatePrompt normed{
        q.data(), k.data(), v.data(), keys.data(), values.data(), rotations.data(), heads_are,
        n,        heads,    kv,       0,           nullptr};
    side.executor->launch(normed, {n, heads + kv}, 64);
    side.note(normed, kSumTolerance, q);
    side.note(normed, kSumTolerance, keys);
    const std::int64_t tile = std::int64_t{heads} * rows * last;
    const Buffer<float> logits = side.up(normal(tile, 5, 3)), p = side.floats(tile), warm = side.floats(tile),
                        noise = side.floats(tile),
                        score = side.up(std::vector<float>(to_index(heads * n), 0.0f)),
                        score_rows = side.floats(tile),
                        slopes = side.up(std::vector<float>{0.5f, 0.25f, 0.1f, 0});
    std::vector<StreamRule> rules(heads);
    for (int h = 0; h < heads; ++h)
        rules[to_index(h)] = {7,
                              h == 0 ? 1.0f : 0.7f,
                              1.5f,
                              1.0f,
                              h < 3 ? 1 : 0,
                              h > 0 ? 1 : 0,
                              h == 2 ? static_cast<int>(ScoreType::fp16) : static_cast<int>(ScoreType::fp32),
                              static_cast<int>(NoiseKind::gumbel),
                              static_cast<int>(h == 1 ? NoiseDraw::row : NoiseDraw::token)};
    const Buffer<StreamRule> streams = side.up(rules);
    const SoftmaxTile plain{logits.data(), p.data(), nullptr, nullptr, slopes.data(),
                            first,         rows,     last,    1,       150};
    side.executor->launch(plain, {rows, heads}, 256);
    side.note(plain, kSumTolerance, p);
    side.note(plain, kSumTolerance, logits);
    const SoftmaxTile tempered{
        logits.data(), warm.data(), noise.data(), streams.data(), nullptr, first, rows, last, 1, 0};
    side.executor->launch(tempered, {rows, heads}, 256);
    side.note(tempered, 1e-5, warm);
    side.note(tempered, kSumTolerance, noise);
    const FoldTile fold{
        p.data(), warm.data(), streams.data(), score.data(), score_rows.data(), first, rows, last, n};
    side.executor->launch(fold, {(last + 255) / 256, heads}, 256);
    side.note(fold, 1e-3, score);  // half types may round either way
    side.note(fold, 1e-3, score_rows);
    const Buffer<FormulaTable> formula = side.up(std::vector<FormulaTable>{scoring_formula()});
    for (StreamRule& rule : rules) rule.score = formula.data();
    const Buffer<StreamRule> by_formula = side.up(rules);
    FoldTile with_formula = fold;
    with_formula.streams = by_formula.data();
    const FoldTileByFormula fold_formula{with_formula, logits.data(), 1, heads / kv};
    side.executor->launch(fold_formula, {(last + 255) / 256, heads}, 256);
    side.note(fold_formula, 1e-3, score);
    side.note(fold_formula, 1e-3, score_rows);
    const int n_last = 110, from = n - n_last - first;  // rows 190 on
    const Buffer<float> win_rows = side.floats(heads * (n_last + 1) * n);
    const KeepRows keep{p.data(), win_rows.data(), first, rows, last, n, n_last + 1, from, 1, 0};
    side.executor->launch(keep, {rows - from, heads}, 256);
    side.note(keep, kSumTolerance, win_rows);
}

/// A whole prompt with score streams of every kind: forgetting, tempered with both draws, none.
template <class T, int kDim>
void prompt_attention(Side& side, int head_dim, int window, bool slopes) {
    const int n = 140, heads = 2, kv = 1, streams = 2;
    const Buffer<T> q = side.up(stored<T>(normal(n * heads * head_dim, 61))),
                    k = side.up(stored<T>(normal(n * kv * head_dim, 62))),
                    v = side.up(stored<T>(normal(n * kv * head_dim, 63)));
    const Buffer<float> of_heads = side.up(std::vector<float>{0.5f, 0.01f}),
                        out = side.floats(n * heads * head_dim), score = side.floats(streams * heads * n);
    const StreamRule none{}, forgets{1, 0.9f, 1, 1, 1, 0, 0, 0, 0};
    StreamRule of_token{7, 1, 1.5f, 1, 1, 1, 0, static_cast<int>(NoiseKind::gumbel), 0}, of_row = of_token;
    of_token.noise_draw = static_cast<int>(NoiseDraw::token);
    of_row.noise_draw = static_cast<int>(NoiseDraw::row);
    of_row.alpha = 0.95f;
    of_row.noise_kind = static_cast<int>(NoiseKind::gaussian);
    const Buffer<StreamRule> rules = side.up(std::vector<StreamRule>{forgets, of_row, of_token, none});
    const Buffer<RowSum> sums = side.up(std::vector<RowSum>(to_index((1 + streams) * heads * n), {0, 0}));
    PromptHeads<T> of{};
    of.q = q.data();
    of.k = k.data();
    of.v = v.data();
    if (slopes) of.slopes = of_heads.data();
    of.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    of.n = n;
    of.n_heads = heads;
    of.head_dim = head_dim;
    of.group = heads / kv;
    of.window = window;
    of.layer = 3;
    const auto blocks = [](int of_block) { return (n + of_block - 1) / of_block; };
    using Sums = PromptSums<T, kDim>;
    using Attend = PromptAttend<T, kDim>;
    using Columns = PromptColumns<T, kDim>;
    const Sums of_rows{of, rules.data(), sums.data()};
    side.executor->launch(of_rows, {blocks(Sums::kRows), heads, 1 + streams}, kMaxThreads);
    side.note(kernel_name<Sums>(), kProductTolerance, reinterpret_cast<const float*>(sums.data()),
              2 * sums.size());
    const Attend attend{of, sums.data(), out.data()};
    side.executor->launch(attend, {blocks(Attend::kRows), heads}, kMaxThreads);
    side.note(attend, rounding<T>, out);  // a probability may round either way
    const Columns columns{of, rules.data(), sums.data(), score.data()};
    side.executor->launch(columns, {blocks(Columns::kColumns), heads, streams}, kMaxThreads);
    side.note(columns, 5 * kProductTolerance, score);
}

template void attention_cases<float>(Side&);
template void attention_cases<Fp16>(Side&);
template void attention_cases<Bf16>(Side&);
template void prompt_attention<Fp16, 64>(Side&, int, int, bool);
template void prompt_attention<Fp16, 128>(Side&, int, int, bool);
template void prompt_attention<Fp16, 256>(Side&, int, int, bool);
template void prompt_attention<Bf16, 64>(Side&, int, int, bool);
template void prompt_attention<Bf16, 128>(Side&, int, int, bool);
template void prompt_attention<Bf16, 256>(Side&, int, int, bool);

}  // namespace keyhole::cuda::selftest
