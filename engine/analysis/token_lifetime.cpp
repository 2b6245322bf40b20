#include "engine/analysis/token_lifetime.h"

#include "engine/analysis/no_value.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_state.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns whether lane 0 keeps everything.
bool reference_is_full(const RunHistory& history, int lane) {
    const LaneRecord* first = history.lane_record(history.steps().front()->row, 0);
    if (lane == 0 || first == nullptr || first->info->policy.evicts()) return false;
    return std::none_of(history.lanes()[0].evicted_at.begin(), history.lanes()[0].evicted_at.end(),
                        [](std::int32_t row) { return row >= 0; });
}

}  // namespace

int TokenLifetime::n_holding(int row) const {
    return static_cast<int>(std::count_if(heads.begin(), heads.end(), [&](const Head& head) {
        return position <= row && (head.evicted_at < 0 || head.evicted_at > row);
    }));
}

int TokenLifetime::first_gone() const {
    int first = -1;
    for (const Head& head : heads)
        if (head.evicted_at >= 0) first = first < 0 ? head.evicted_at : std::min(first, head.evicted_at);
    return first;
}

int TokenLifetime::last_gone() const {
    int last = -1;
    for (const Head& head : heads) last = std::max(last, head.evicted_at);
    return last;
}

TokenLifetime token_lifetime(const RunHistory& history, int lane, int position) {
    const KvLayout& layout = history.layout(lane);
    TokenLifetime lifetime;
    lifetime.lane = lane;
    lifetime.position = position;
    const std::size_t n = history.steps().size();
    for (int g = 0; g < layout.n_kv_heads(); ++g)
        lifetime.heads.push_back({history.evicted_at(lane, g, position), std::vector<float>(n, kNoValue),
                                  std::vector<float>(n, kNoValue)});
    lifetime.full_known = reference_is_full(history, lane);
    lifetime.full_attention.assign(n, kNoValue);
    std::vector<float> scores;
    for (std::size_t i = 0; i < n; ++i) {
        const int row = history.steps()[i]->row;
        if (position > row) continue;
        scores.resize(to_index(row) + 1);
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            TokenLifetime::Head& head = lifetime.heads[to_index(g)];
            head.threshold[i] = threshold_at(history, lane, row, g);
            if (head.evicted_at >= 0 && head.evicted_at < row) continue;
            if (score_values(history, lane, row, g, scores)) head.score[i] = scores[to_index(position)];
        }
        const bool same_text =
            row < static_cast<int>(history.lanes()[0].tokens.size()) &&
            row < static_cast<int>(history.lanes()[to_index(lane)].tokens.size()) &&
            history.lanes()[0].tokens[to_index(row)] == history.lanes()[to_index(lane)].tokens[to_index(row)];
        if (!lifetime.full_known || !same_text) continue;
        double sum = 0;
        int lost = 0;
        attention_values_of_all(history, 0, row, [&](int layer, int head, std::span<const float> values) {
            const int gone = lifetime.heads[to_index(layout.kv_head_from_head(layer, head))].evicted_at;
            const float value = values[to_index(position)];
            if (gone < 0 || gone >= row || !std::isfinite(value)) return;
            sum += value == kHiddenValue ? 0.0 : double(value);
            ++lost;
        });
        if (lost > 0) lifetime.full_attention[i] = static_cast<float>(sum / lost);
    }
    return lifetime;
}

std::string evictions_text(const TokenLifetime& lifetime) {
    const auto n = std::count_if(lifetime.heads.begin(), lifetime.heads.end(),
                                 [](const TokenLifetime::Head& head) { return head.evicted_at >= 0; });
    const int first = lifetime.first_gone(), last = lifetime.last_gone();
    if (n == 0) return "No KV head has evicted it.";
    if (n == 1) return fmt::format("One KV head evicted it, after step {}.", first);
    if (first == last) return fmt::format("{} KV heads evicted it, all after step {}.", n, first);
    return fmt::format("{} KV heads evicted it: the first after step {}, the last so far after step {}.", n,
                       first, last);
}

std::string eviction_story(const RunHistory& history, int lane, int layer, int head, int position) {
    const int g = history.layout(lane).kv_head_from_head(layer, head);
    const int row = history.evicted_at(lane, g, position);
    if (row < 0) return {};
    std::string text = fmt::format("L{}.H{} evicted it after step {}, {}", layer, head, row,
                                   eviction_cause(history, lane, g, position));
    const int by = lane_of_row(history, lane, row);
    const LaneRecord* record = history.lane_record(std::max(row, history.steps().front()->row), by);
    if (record == nullptr) return text;
    const ResolvedPolicy& policy = record->info->policy.at(layer, head);
    if (policy.evicts()) {
        text +=
            policy.has_threshold()
                ? fmt::format(". Its rule: of the tokens that compete those below {} go", policy.threshold)
                : fmt::format(". Its rule: of the tokens that compete the lowest score goes; {} stay",
                              policy.stored);
        std::string spared = policy.sinks > 0 ? fmt::format("the first {}", policy.sinks) : "";
        if (policy.newest > 0)
            spared += fmt::format("{}the newest {}", spared.empty() ? "" : " and ", policy.newest);
        if (!spared.empty())
            text += fmt::format(", and {} do{} not compete", spared,
                                policy.sinks + policy.newest == 1 ? "es" : "");
    }
    const auto at = competition(history, lane, layer, head, position, row);
    if (!at) return text + ". Scores within the prompt are not recorded.";
    if (!at->competes) return text + fmt::format(". It did not compete ({}).", at->why_not);
    text += fmt::format(". Rank {} of {} that competed. Score {:.2g}", at->rank, at->n, double(at->score));
    if (!std::isnan(at->threshold))
        text += fmt::format("; the lowest that stayed has {:.2g}", double(at->threshold));
    return text + ".";
}

}  // namespace keyhole
