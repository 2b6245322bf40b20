// Attention of a prompt and its scores: fused, or tile by tile.
#include "engine/backend/cuda/prefill.h"

#include "engine/backend/common/kv_rows.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/cuda/kernels/field.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"

#include <algorithm>
#include <utility>

namespace keyhole::cuda {
namespace {

/// Returns whole warps, no more than a row of so many columns needs.
int threads_for_row(int n_columns) {
    return std::min(kThreads, (n_columns + 31) / 32 * 32);
}

}  // namespace

/// Returns the types, without numbers yet, of the layer's streams whose scores do what is asked.
std::map<KvType, const float*> Prefill::types_of_streams(int layer,
                                                         bool (*asked)(const FormulaRef& score)) const {
    const int n_heads = model_.config().n_heads;
    std::map<KvType, const float*> found;
    for (int h = 0; h < n_heads; ++h)
        for (const ScoreStream& stream : plan_.streams[to_index(layer * n_heads + h)])
            if (asked(stream.score)) found[kv_type_for(stream.kv_dtype, model_)] = nullptr;
    return found;
}

/// Uploads the lengths of the layer's keys and, behind them, values as the types store them whose lengths
/// its streams name. Returns where those of a type begin.
std::map<KvType, const float*> Prefill::upload_lengths(int layer, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    std::map<KvType, const float*> found = types_of_streams(layer, names_lengths);
    if (found.empty()) return found;
    const std::size_t n_rows = to_index(c.n_kv_heads) * to_index(n_);
    std::vector<float> rows(n_rows * to_index(c.head_dim)), lengths;
    for (const Buffer<float>* of : {&owner.keys, &owner.values}) {
        executor_->download(rows.data(), of->data(), rows.size() * sizeof(float));
        executor_->wait();
        lengths.resize(2 * found.size() * n_rows);
        std::size_t at = of == &owner.keys ? 0 : n_rows;
        for (const auto& [type, where] : found) {
            std::ranges::copy(lengths_as(type, rows.data(), std::ssize(rows) / c.head_dim, c.head_dim),
                              lengths.begin() + static_cast<std::ptrdiff_t>(at));
            at += 2 * n_rows;
        }
    }
    lengths_.grow(executor_, lengths.size());
    executor_->upload(lengths_.data(), lengths.data(), lengths.size() * sizeof(float));
    executor_->wait();
    const float* next = lengths_.data();
    for (auto& [type, where] : found) where = std::exchange(next, next + 2 * n_rows);
    return found;
}

/// Computes how far the layer's values reach, as the types store them whose reach its streams name. Returns
/// where the numbers of a type begin.
std::map<KvType, const float*> Prefill::compute_reach(int layer, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    std::map<KvType, const float*> found = types_of_streams(layer, names_reach);
    if (found.empty()) return found;
    const int first = model_.layout().first_read(layer);
    const std::int64_t n_rows = std::int64_t{c.n_kv_heads} * n_, of_head = std::int64_t{n_} * c.head_dim;
    std::vector<float> rows(to_index(n_rows * c.head_dim));
    executor_->download(rows.data(), owner.values.data(), rows.size() * sizeof(float));
    executor_->wait();
    const std::vector<float> due(to_index(n_rows), kReachDue);
    const Buffer<float> stored(executor_, rows.size());
    const Buffer<DeviceHead<float>> device_heads(executor_, to_index(first + c.n_kv_heads));
    const Buffer<LaneView<float>> lanes(executor_, 1);
    LaneView<float> lane{};
    lane.heads = device_heads.data();
    executor_->upload(lanes.data(), &lane, sizeof(lane));
    for (auto& [type, where] : found) {
        const std::vector<float> rounded = rounded_as(type, rows.data(), n_rows, c.head_dim);
        Buffer<float>& reach = reach_[type];
        reach.grow(executor_, due.size());
        std::vector<DeviceHead<float>> heads(device_heads.size());
        for (int g = 0; g < c.n_kv_heads; ++g)
            heads[to_index(first + g)] = {nullptr, stored.data() + g * of_head,        nullptr, nullptr, n_,
                                          n_,      reach.data() + std::int64_t{g} * n_};
        executor_->upload(device_heads.data(), heads.data(), device_heads.size_bytes());
        executor_->upload(reach.data(), due.data(), due.size() * sizeof(float));
        executor_->upload(stored.data(), rounded.data(), stored.size_bytes());
        executor_->launch(
            OutputReach<float>{lanes.data(), layout_.table(), weights_.outputs.data(), nullptr,
                               static_cast<std::int32_t>(heads.size()), n_, c.head_dim, c.n_heads, c.d_model,
                               first, 1},
            {c.n_kv_heads, 1, (n_ + OutputReach<float>::kTokens - 1) / OutputReach<float>::kTokens},
            kThreads);
        executor_->wait();  // until what was uploaded may go
        where = reach.data();
    }
    return found;
}

void Prefill::upload_rules(int layer, const LayerStore& owner) {
    const std::map<KvType, const float*> lengths = upload_lengths(layer, owner),
                                         reach = compute_reach(layer, owner);
    const std::size_t n_lengths = to_index(model_.config().n_kv_heads) * to_index(n_);
    const int n_heads = model_.config().n_heads;
    std::vector<StreamRule> rules(to_index(plan_.n_streams * n_heads));
    std::vector<FormulaTable> formulas;
    for (int h = 0; h < n_heads; ++h)
        for (const ScoreStream& stream : plan_.streams[to_index(layer * n_heads + h)])
            if (stream.score) formulas.push_back(*stream.score);
    formulas_.grow(executor_, formulas.size());
    if (!formulas.empty())
        executor_->upload(formulas_.data(), formulas.data(), formulas.size() * sizeof(FormulaTable));
    const FormulaTable* next = formulas_.data();
    for (int h = 0; h < n_heads; ++h) {
        const auto& of_head = plan_.streams[to_index(layer * n_heads + h)];
        for (std::size_t s = 0; s < of_head.size(); ++s) {
            const ScoreStream& stream = of_head[s];
            rules[s * to_index(n_heads) + to_index(h)] = {stream.seed,
                                                          stream.alpha,
                                                          stream.tau,
                                                          stream.gain,
                                                          1,
                                                          stream.tempered ? 1 : 0,
                                                          static_cast<std::int32_t>(stream.dtype),
                                                          static_cast<std::int32_t>(stream.noise),
                                                          static_cast<std::int32_t>(stream.draw),
                                                          stream.budget,
                                                          stream.window,
                                                          stream.mix,
                                                          stream.score ? next++ : nullptr};
            StreamRule& rule = rules[s * to_index(n_heads) + to_index(h)];
            if (names_reach(stream.score)) rule.reach = reach.at(kv_type_for(stream.kv_dtype, model_));
            if (!names_lengths(stream.score)) continue;
            rule.key_lengths = lengths.at(kv_type_for(stream.kv_dtype, model_));
            rule.value_lengths = rule.key_lengths + n_lengths;
        }
    }
    executor_->upload(rules_.data(), rules.data(), rules.size() * sizeof(StreamRule));
    executor_->wait();
}

void Prefill::attend(int layer, const LayerStore& own, const LayerStore& owner) {
    upload_rules(layer, owner);
    if (fused_)
        attend_fused(layer, own, owner);
    else
        attend_tiles(layer, own, owner);
}

/// Attends all rows and sums every score stream. What lanes want of the last row comes from a tile of it.
void Prefill::attend_fused(int layer, const LayerStore& own, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    const std::int64_t of_q = std::int64_t{n_} * c.n_heads * c.head_dim,
                       of_kv = std::int64_t{n_} * c.n_kv_heads * c.head_dim;
    narrow(*executor_, type_, q_.data(), narrowed_.data(), of_q);  // no product needs it meanwhile
    narrow(*executor_, type_, keys_of(layer, owner), narrow_keys_.data(), of_kv);
    narrow(*executor_, type_, owner.values.data(), narrow_values_.data(), of_kv);
    if (type_ == NumberType::f16)
        launch_fused<Fp16>(layer, own);
    else
        launch_fused<Bf16>(layer, own);
    for (const auto& [first, last] : win_rows_of(0, n_)) {
        weigh_tile(layer, owner, first, last);
        keep_rows(own, first, last);
    }
    if (!needs_last_row_) return;
    weigh_tile(layer, owner, n_ - 1, n_);
    for (int stream = 0; noise_.size() > 0 && stream < plan_.n_streams; ++stream)
        temper_tile(layer, stream, n_ - 1, n_);
}

/// T: the type of the narrowed queries, keys and values.
template <class T>
void Prefill::launch_fused(int layer, const LayerStore& own) {
    const ModelConfig& c = model_.config();
    const AttentionRule rule = attention_rule(c, layer, 0);
    PromptHeads<T> heads{};
    heads.q = reinterpret_cast<const T*>(narrowed_.data());
    heads.k = reinterpret_cast<const T*>(narrow_keys_.data());
    heads.v = reinterpret_cast<const T*>(narrow_values_.data());
    heads.slopes = weights_.slopes.data();
    heads.scale = rule.scale;
    heads.n = n_;
    heads.n_heads = c.n_heads;
    heads.head_dim = c.head_dim;
    heads.group = c.n_heads / c.n_kv_heads;
    heads.window = rule.window;
    heads.layer = layer;
    with_prompt_dim(c.head_dim, [&]<int kDim>() {
        using Sums = PromptSums<T, kDim>;
        using Attend = PromptAttend<T, kDim>;
        using Columns = PromptColumns<T, kDim>;
        const auto blocks = [&](int of_block) { return (n_ + of_block - 1) / of_block; };
        executor_->launch(Sums{heads, rules_.data(), sums_.data()},
                          {blocks(Sums::kRows), c.n_heads, 1 + plan_.n_streams}, kMaxThreads);
        executor_->launch(Attend{heads, sums_.data(), attended_.data()}, {blocks(Attend::kRows), c.n_heads},
                          kMaxThreads);
        executor_->launch(Columns{heads, rules_.data(), sums_.data(), own.scores.data()},
                          {blocks(Columns::kColumns), c.n_heads, plan_.n_streams}, kMaxThreads);
    });
}

void Prefill::attend_tiles(int layer, const LayerStore& own, const LayerStore& owner) {
    for (int first = 0; first < n_; first += tile_rows_) {
        const int last = std::min(n_, first + tile_rows_);
        weigh_tile(layer, owner, first, last);
        keep_rows(own, first, last);
        attend_tile(owner, first, last);
        for (int stream = 0; stream < plan_.n_streams; ++stream) {
            temper_tile(layer, stream, first, last);
            fold_tile(layer, own, stream, first, last);
        }
        if (sink_requests_.scores) emit_scores(layer, first, last);
    }
}

/// Computes logits and probabilities [heads, rows, last] of rows [first, last) of all heads, and sends them
/// to those who want them.
void Prefill::weigh_tile(int layer, const LayerStore& owner, int first, int last) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, rows = last - first, columns = last, group = c.n_heads / c.n_kv_heads;
    const AttentionRule rule = attention_rule(c, layer, 0);
    for (std::int64_t j = 0; j < group; ++j) {  // one query head of every KV head
        MatrixProduct p;
        p.m = rows;
        p.n_batch = c.n_kv_heads;
        p.a = q_.data() + first * c.n_heads * d + j * d;
        p.b = keys_of(layer, owner);
        p.c = logits_.data() + j * rows * columns;
        p.n = columns;
        p.k = d;
        p.a_stride = c.n_heads * d;
        p.b_stride = d;
        p.c_stride = columns;
        p.a_batch = group * d;
        p.b_batch = n_ * d;
        p.c_batch = group * rows * columns;
        p.b_transposed = 1;
        p.alpha = rule.scale;
        executor_->multiply(p);
    }
    executor_->launch(
        SoftmaxTile{logits_.data(), probabilities_.data(), nullptr, nullptr, weights_.slopes.data(), first,
                    static_cast<std::int32_t>(rows), last, layer, rule.window},
        {static_cast<int>(rows), c.n_heads}, threads_for_row(last));
    emit_attention(layer, first, last);
}

/// Writes the output of the tile's rows to attended_.
void Prefill::attend_tile(const LayerStore& owner, int first, int last) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, rows = last - first, columns = last, group = c.n_heads / c.n_kv_heads;
    for (std::int64_t j = 0; j < group; ++j) {
        MatrixProduct p;
        p.m = rows;
        p.n_batch = c.n_kv_heads;
        p.a = probabilities_.data() + j * rows * columns;
        p.b = owner.values.data();
        p.c = attended_.data() + first * c.n_heads * d + j * d;
        p.n = d;
        p.k = columns;
        p.a_stride = columns;
        p.b_stride = d;
        p.c_stride = c.n_heads * d;
        p.a_batch = group * rows * columns;
        p.b_batch = n_ * d;
        p.c_batch = group * d;
        executor_->multiply(p);
    }
}

/// Computes the tempered probabilities and the noise of a stream where some head tempers.
void Prefill::temper_tile(int layer, int stream, int first, int last) {
    const int n_heads = model_.config().n_heads, rows = last - first;
    bool tempers = false;
    for (int h = 0; h < n_heads; ++h) {
        const auto& of_head = plan_.streams[to_index(layer * n_heads + h)];
        tempers = tempers || (to_index(stream) < of_head.size() && of_head[to_index(stream)].tempered);
    }
    if (!tempers) return;
    const StreamRule* rules = rules_.data() + std::int64_t{stream} * n_heads;
    executor_->launch(SoftmaxTile{logits_.data(), tempered_.data(), noise_.data(), rules, nullptr, first,
                                  rows, last, layer, 0},
                      {rows, n_heads}, threads_for_row(last));
    emit_noise(layer, stream, first, last);
}

/// Returns those of the rows [first, last) that lanes want for `win`, as [from, to) without gaps.
std::vector<std::pair<int, int>> Prefill::win_rows_of(int first, int last) const {
    std::vector<std::pair<int, int>> parts;
    for (const int row : win_rows_) {
        if (row < first || row >= last) continue;
        if (parts.empty() || parts.back().second != row) parts.emplace_back(row, row);
        ++parts.back().second;
    }
    return parts;
}

/// Returns the place of a row in win_rows_.
int Prefill::place_of_win_row(int row) const {
    return static_cast<int>(std::lower_bound(win_rows_.begin(), win_rows_.end(), row) - win_rows_.begin());
}

/// Keeps those of the tile's rows that lanes want for `win`.
void Prefill::keep_rows(const LayerStore& store, int first, int last) {
    const auto keep = [&](const Buffer<float>& tile, const Buffer<float>& rows, int from, int to) {
        executor_->launch(
            KeepRows{tile.data(), rows.data(), first, last - first, last, n_,
                     static_cast<std::int32_t>(win_rows_.size()), from - first, place_of_win_row(from), 0},
            {to - from, model_.config().n_heads}, kThreads);
    };
    for (const auto& [from, to] : win_rows_of(first, last)) {
        keep(probabilities_, store.win_rows, from, to);
        if (wants_win_logits_) keep(logits_, store.win_logits, from, to);
    }
}

/// Folds the tile's rows, in order, into one score stream of every head that has it.
void Prefill::fold_tile(int layer, const LayerStore& store, int stream, int first, int last) {
    const int n_heads = model_.config().n_heads, rows = last - first;
    FoldTile fold{};
    fold.p = probabilities_.data();
    fold.tempered = tempered_.data();
    fold.streams = rules_.data() + std::int64_t{stream} * n_heads;
    fold.score = store.scores.data() + std::int64_t{stream} * n_heads * n_;
    if (sink_requests_.scores) fold.rows = score_rows_.data() + std::int64_t{stream} * n_heads * rows * last;
    fold.first_row = first;
    fold.n_rows = rows;
    fold.n_columns = last;
    fold.n = n_;
    executor_->launch(fold, {blocks_for(last), n_heads}, kThreads);
    if (formulas_.size() > 0)
        executor_->launch(
            FoldTileByFormula{fold, logits_.data(), layer, n_heads / model_.config().n_kv_heads},
            {blocks_for(last), n_heads}, kThreads);
}

}  // namespace keyhole::cuda
