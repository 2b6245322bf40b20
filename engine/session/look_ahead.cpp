#include "engine/session/look_ahead.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/resource_use.h"
#include "engine/policy/spec_copies.h"
#include "engine/session/lane_fault.h"
#include "engine/session/lane_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace keyhole {

namespace {

constexpr int kOpenEnd = 256;  // rows ahead of a run without a last one

/// The lane that reads ahead: it keeps everything. Lanes that differ in what they evict have the same one.
LaneSpec reader_spec(const LaneSpec& spec) {
    const PolicyParams policy = without_eviction(spec).policy;
    LaneSpec reader{preset_params(Preset::full), spec.sharing};
    reader.policy.prefill = policy.prefill;
    reader.policy.kv_dtype = policy.kv_dtype;
    return reader;
}

/// Appends, for every KV head, the mean over its query heads of a row's attention, to n_columns positions.
void add_row(const KvLayout& layout, const RowValues& values, int n_columns, std::vector<float>& rows) {
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const std::size_t at = rows.size(),
                          n = to_index(values.offset[to_index(g) + 1] - values.offset[to_index(g)]);
        rows.resize(at + to_index(n_columns), 0);
        const std::vector<HeadRef>& readers = layout.kv_head(g).readers;
        for (const HeadRef& reader : readers) {
            const auto from =
                to_index(values.head_offset[to_index(reader.layer * layout.n_heads() + reader.head)]);
            for (std::size_t i = 0; i < n; ++i) rows[at + i] += values.attention[from + i];
        }
        for (std::size_t i = 0; i < n; ++i) rows[at + i] /= static_cast<float>(readers.size());
    }
}

int n_rows_ahead(const RunContext& context, std::size_t n_given) {
    const RunInfo& run = *context.run;
    int n = std::max(run.n_generate > 0 ? run.n_generate : kOpenEnd, static_cast<int>(n_given));
    if (run.config.positions == PositionKind::learned) n = std::min(n, run.config.n_ctx - run.n_prompt());
    return n;
}

/// Tokens before a part that are repeated with it.
constexpr int kRepeatedBefore = 8;
/// Tokens that every pass sees beside its own part of the prompt: they soak up spare attention.
constexpr int kAlwaysSeen = 4;

/// Returns the words that request a repetition of prompt tokens [first, last), and these tokens.
std::vector<int> repetition(const RunContext& context, int first, int last) {
    const std::vector<int>& prompt = context.run->prompt_tokens;
    const std::string ask = first == 0 ? "\n\nRepeat the text above, word for word:\n"
                                       : "\n\nRepeat the text above, word for word, from here on:\n";
    std::vector<int> tokens = context.model->tokenizer().encode(ask, false);
    tokens.insert(tokens.end(), prompt.begin() + std::max(first - kRepeatedBefore, 0),
                  prompt.begin() + first);
    tokens.insert(tokens.end(), prompt.begin() + first, prompt.begin() + last);
    return tokens;
}

/// Keeps the most attention that each token of a part of the prompt gets from the rows behind the prompt. A
/// row's attention to the first tokens, the part and the rows behind the prompt counts as a whole.
class RepeatSink final : public PrefillSink {
  public:
    RepeatSink(const KvLayout& layout, int n_prompt, int first, int last)
        : layout_(layout),
          n_prompt_(n_prompt),
          first_(first),
          last_(last),
          most_(to_index(layout.n_layers() * layout.n_heads()),
                std::vector<float>(to_index(last - first), 0.0f)) {}

    RowRequest requested() const override {
        RowRequest requested;
        requested.attention = true;
        return requested;
    }
    void attention(const PrefillTile& tile) override {
        std::vector<float>& most = most_[to_index(tile.layer * layout_.n_heads() + tile.head)];
        for (int i = std::max(n_prompt_ - tile.first_row, 0); i < tile.n_rows; ++i) {
            const float* row = tile.values + std::int64_t{i} * tile.n_columns;
            const double share = seen_share(row, tile.first_row + i);
            for (int p = first_; p < last_ && share > 0; ++p) {
                float& own = most[to_index(p - first_)];
                own = std::max(own, static_cast<float>(double{row[p]} / share));
            }
        }
    }
    /// Joins the query heads of each KV head.
    void add_to(RepeatTable& table) const {
        for (int layer = 0; layer < layout_.n_layers(); ++layer)
            for (int head = 0; head < layout_.n_heads(); ++head) {
                const auto g = to_index(layout_.kv_head_from_head(layer, head));
                const std::vector<float>& own = most_[to_index(layer * layout_.n_heads() + head)];
                float* to = table.most.data() + g * to_index(table.n_columns) + to_index(first_);
                for (std::size_t i = 0; i < own.size(); ++i) to[i] = std::max(to[i], own[i]);
            }
    }

  private:
    /// Returns the part of a row's attention that stays where other parts of the prompt are left out.
    double seen_share(const float* row, int at) const {
        if (first_ == 0 && last_ == n_prompt_) return 1;
        double sum = 0;
        for (int p = 0; p <= at; ++p)
            if (p < kAlwaysSeen || (p >= first_ && p < last_) || p >= n_prompt_) sum += double{row[p]};
        return sum;
    }

    const KvLayout& layout_;
    int n_prompt_, first_, last_;
    std::vector<std::vector<float>> most_;  // [n_layers * n_heads][last - first]
};

/// Reads the prompt, and behind it the prompt again, part by part (KVzip).
RepeatTable read_again(const RunContext& context, const LaneSpec& spec, const ProgressPart& progress,
                       int part) {
    RowRequest requested;
    const LaneRunner runner(context, requested);
    const int n_prompt = context.n_prompt();
    RepeatTable table;
    table.n_columns = n_prompt;
    for (int first = 0; first < n_prompt; first += part) {
        const int last = std::min(first + part, n_prompt);
        std::vector<int> tokens = context.run->prompt_tokens;
        const std::vector<int> behind = repetition(context, first, last);
        tokens.insert(tokens.end(), behind.begin(), behind.end());
        Lane lane = runner.new_lane(LaneInfo{}, spec);
        const KvLayout& layout = lane.model->layout();
        table.n_kv_heads = layout.n_kv_heads();
        table.most.resize(to_index(table.n_kv_heads) * to_index(n_prompt), 0.0f);
        RepeatSink sink(layout, n_prompt, first, last);
        const LanePrefill prefill{lane.cache.get(), requested, &lane.out};
        const ProgressPart of_part = progress.part(double(first) / n_prompt, double(last - first) / n_prompt);
        context.backend.prefill(tokens, {&prefill, 1}, &sink, of_part.callback());
        sink.add_to(table);
    }
    return table;
}

FutureTable run_ahead(const RunContext& context, const LaneSpec& spec, const Sampling& sampling,
                      std::span<const int> given, const ProgressPart& progress) {
    RowRequest requested;
    requested.attention = true;
    const LaneRunner runner(context, requested);
    // The reference lane writes the text where none is given; it may have other settings.
    const LaneSpec writer = reader_spec(context.start.lanes.front());
    std::vector<Lane> lanes;
    lanes.push_back(runner.new_lane(LaneInfo{}, spec));
    if (!(writer == spec) && to_index(n_rows_ahead(context, given.size())) > given.size())
        lanes.push_back(runner.without_values().new_lane(LaneInfo{}, writer));
    const int n_prompt = context.n_prompt(), most = n_rows_ahead(context, given.size());
    const double n_rows = n_prompt + most;

    const KvLayout& layout = lanes.front().model->layout();
    const std::vector<int>& eos = context.run->config.eos;
    FutureTable table;
    table.first_row = n_prompt - 1;
    table.n_kv_heads = layout.n_kv_heads();
    table.n_columns = n_prompt + most;
    std::vector<Lane*> fed;
    for (Lane& lane : lanes) fed.push_back(&lane);
    const std::size_t of_row = to_index(table.n_kv_heads) * to_index(table.n_columns);
    const std::size_t n_sums = of_row * to_index(most + 1);
    check_room(static_cast<std::int64_t>(n_sums * sizeof(float)),
               fmt::format("the attention of {} steps ahead, which a lane ranks by,", most),
               "decode fewer tokens, or shorten the prompt");
    runner.without_values().prefill(lanes, sampling, progress.part(0, n_prompt / n_rows), false);
    std::vector<float> rows;
    rows.reserve(n_sums);
    rows.assign(of_row, 0);  // the first row's own attention is past
    for (int i = 0; i < most; ++i) {
        progress.report_or_cancel((n_prompt + i) / n_rows);
        const bool is_given = to_index(i) < given.size();
        const int token = is_given ? given[to_index(i)] : lanes.back().predicted;
        for (Lane* lane : fed) lane->token = token;
        runner.feed(fed, n_prompt + i);
        for (Lane* lane : fed) {
            lane->tokens.push_back(token);
            runner.read_row(*lane, sampling, n_prompt + i);
            throw_if_failed(*lane);
        }
        add_row(layout, lanes.front().out.values, table.n_columns, rows);
        table.tokens.push_back(token);
        if (!is_given && !context.start.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end())
            break;
    }
    // Row r holds the attention of the rows after r.
    table.n_rows = static_cast<int>(table.tokens.size()) + 1;
    for (int r = 0; r + 1 < table.n_rows; ++r)
        std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(to_index(r + 1) * of_row), of_row,
                    rows.begin() + static_cast<std::ptrdiff_t>(to_index(r) * of_row));
    std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(to_index(table.n_rows - 1) * of_row), of_row,
                0.0f);
    for (int r = table.n_rows - 2; r >= 0; --r)
        for (std::size_t i = 0; i < of_row; ++i)
            rows[to_index(r) * of_row + i] += rows[to_index(r + 1) * of_row + i];
    table.sums = std::move(rows);
    return table;
}

}  // namespace

bool needs_future(const ResolvedPolicy& policy) {
    return policy.any_names(Quantity::future) &&
           policy.any([](const ResolvedPolicy& one) { return one.evicts(); });
}

bool needs_future(const PolicyParams& policy) {
    return names_anywhere(policy, Quantity::future) &&
           (policy.budget.unit != Amount::Unit::all || policy.threshold != 0 || policy.differs_by_head());
}

bool needs_repeats(const ResolvedPolicy& policy) {
    return policy.any_names(Quantity::repeat) &&
           policy.any([](const ResolvedPolicy& one) { return one.evicts(); });
}

bool needs_repeats(const PolicyParams& policy) {
    return names_anywhere(policy, Quantity::repeat);
}

std::string repeats_fault(const RunContext& context) {
    const ModelConfig& config = context.run->config;
    const int n = context.n_prompt(), part = std::min(n, kRepeated);
    const int needed = n + static_cast<int>(repetition(context, 0, part).size()) + kRepeatedBefore;
    if (config.positions != PositionKind::learned || needed <= config.n_ctx) return {};
    return fmt::format(
        "repeat, which kvzip ranks by, reads the prompt twice, which takes {} positions, and this model has "
        "learned {}; shorten the prompt",
        needed, config.n_ctx);
}

std::string future_fault(const RunContext& context, bool follow, const LaneSpec& reference) {
    const RunSpec& start = context.start;
    if (start.n_generate > 0 && start.forced.size() >= to_index(start.n_generate)) return {};
    const ResolvedPolicy policy = resolve(reference.policy, context.n_prompt(), start.n_generate);
    const bool keeps_all =
        reference.policy.overrides.empty() && reference.policy.heads.empty() && !policy.evicts();
    if (follow && keeps_all) return {};
    return follow
               ? "future, which oracle ranks by, is the attention of a text that is known ahead, and lane 0 "
                 "evicts; make lane 0 full"
               : "future, which oracle ranks by, is the attention of a text that is known ahead, and here "
                 "each lane writes its own; let the lanes follow a full lane 0, or read a text that is given";
}

std::shared_ptr<const RepeatTable> LookAhead::repeats(const RunContext& context, const LaneSpec& spec,
                                                      const ProgressPart& progress, int part) {
    const LaneSpec reader = reader_spec(spec);
    for (const auto& [known, table] : repeats_)
        if (known == reader) return table;
    auto table = std::make_shared<const RepeatTable>(read_again(context, reader, progress, part));
    repeats_.emplace_back(reader, table);
    return table;
}

std::shared_ptr<const FutureTable> LookAhead::table(const RunContext& context, const LaneSpec& spec,
                                                    std::span<const int> given,
                                                    const ProgressPart& progress) {
    const LaneSpec reader = reader_spec(spec);
    for (const Known& known : known_)
        if (known.spec == reader && known.sampling == sampling_ && std::ranges::equal(known.given, given))
            return known.table;
    constexpr std::size_t kMostKnown = 4;
    constexpr std::size_t kMostBytes = std::size_t{1} << 30;
    const Sampling sampling = sampling_;
    auto table = std::make_shared<const FutureTable>(run_ahead(context, reader, sampling, given, progress));
    const auto n_bytes = [&] {
        return std::accumulate(
            known_.begin(), known_.end(), std::size_t{0},
            [](std::size_t sum, const Known& known) { return sum + known.table->bytes(); });
    };
    while (known_.size() >= kMostKnown || (known_.size() > 1 && n_bytes() > kMostBytes))
        known_.erase(known_.begin() + 1);  // the prompt's own stays
    known_.push_back({reader, sampling, {given.begin(), given.end()}, table});
    return table;
}

}  // namespace keyhole
