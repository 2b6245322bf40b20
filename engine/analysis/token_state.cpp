#include "engine/analysis/token_state.h"

#include "engine/analysis/competing.h"
#include "engine/analysis/no_value.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/run/command.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

const LaneRecord* record_of(const RunHistory& history, int lane, int row) {
    if (row < history.steps().front()->row) row = history.steps().front()->row;
    return history.lane_record(row, lane_of_row(history, lane, row));
}

/// Returns the index of a lane among the lanes of a step, as commands name it; -1: not there.
int index_in_step(const StepTrace& step, int lane_id) {
    for (std::size_t i = 0; i < step.lanes.size(); ++i)
        if (step.lanes[i].info->id == lane_id) return static_cast<int>(i);
    return -1;
}

bool evicted_in(const LaneRecord& record, int kv_head, int position, bool by_row, int row) {
    return std::any_of(record.evictions.begin(), record.evictions.end(), [&](const Eviction& e) {
        return e.kv_head == kv_head && e.position == position && (e.row == row) == by_row;
    });
}

/// Returns the command of a step that evicted this token, the last one if there are several.
std::string command_that_took(const StepTrace& step, int lane_index, int kv_head, int position,
                              const KvLayout& layout) {
    const auto reads = [&](const TokenPlace& place) {
        for (const HeadRef& reader : layout.kv_head(kv_head).readers)
            if ((place.layer < 0 || place.layer == reader.layer) &&
                (place.head < 0 || place.head == reader.head))
                return true;
        return false;
    };
    std::string found;
    for (const std::string& text : step.commands) {
        try {
            const Command command = parse_command(text);
            if (const auto* evict = std::get_if<EvictToken>(&command)) {
                if (evict->at.index == lane_index && evict->at.position == position && reads(evict->at))
                    return "by hand (" + text + ")";
            } else if (const auto* set = std::get_if<SetLane>(&command)) {
                if (set->index == lane_index) found = "by a change (" + text + ")";
            } else if (const auto* fork = std::get_if<ForkLane>(&command)) {
                if (fork->spec) found = "by a change (" + text + ")";
            }
        } catch (const Error&) {  // written by a newer version
        }
    }
    return found.empty() ? "by a command" : found;
}

}  // namespace

TokenPresence presence(const RunHistory& history, int lane, int kv_head, int position, int row) {
    if (position > row) return TokenPresence::future;
    const int by = lane_of_row(history, lane, row);
    if (history.hidden(by, kv_head, position, row)) return TokenPresence::hidden;
    if (!history.attended(by, kv_head, position, row)) return TokenPresence::evicted;
    return history.stored(by, kv_head, position, row) ? TokenPresence::attended : TokenPresence::leaving;
}

CellState mask_state(const RunHistory& history, int lane, int kv_head, int position, int row) {
    if (position > row) return CellState::future;
    if (history.stored(lane, kv_head, position, row))
        return history.hidden(lane, kv_head, position, row) ? CellState::hidden : CellState::kept;
    return history.attended(lane, kv_head, position, row) ? CellState::last_seen : CellState::evicted;
}

std::string presence_text(const RunHistory& history, int lane, int kv_head, int position, int row) {
    const TokenPresence is = presence(history, lane, kv_head, position, row);
    const bool pinned = history.pinned(lane_of_row(history, lane, row), kv_head, position, row);
    std::string text;
    switch (is) {
        case TokenPresence::future:
            return "not there yet";
        case TokenPresence::attended:
            text = "stored and attended";
            break;
        case TokenPresence::leaving:
            text = "attended, then evicted";
            break;
        case TokenPresence::evicted:
            return "gone";
        case TokenPresence::hidden: {
            const LaneRecord* record = record_of(history, lane, row);
            const bool dilated = record != nullptr && record->info->policy.dilation > 0;
            const bool by_page = record != nullptr && record->info->policy.any_reads_pages();
            const std::vector<int>& window = history.run().config.window;
            const auto layer = to_index(history.layout(lane).kv_head(kv_head).owner_layer);
            if (layer < window.size() && window[layer] > 0 && position <= row - window[layer])
                text = fmt::format("stored, beyond the model's sliding window of {} tokens", window[layer]);
            else
                text = dilated   ? "stored, hidden by the gaps of the dilated window"
                       : by_page ? "stored, in a page that this step did not read"
                                 : "stored, hidden for this step (as the released code does once)";
            break;
        }
    }
    if (is == TokenPresence::hidden &&
        !history.stored(lane_of_row(history, lane, row), kv_head, position, row))
        text += ", then evicted";
    return pinned ? text + ", pinned" : text;
}

std::optional<Competition> competition(const RunHistory& history, int lane, int layer, int head, int position,
                                       int row) {
    lane = lane_of_row(history, lane, row);
    const int g = history.layout(lane).kv_head_from_head(layer, head);
    const LaneRecord* record = history.lane_record(row, lane);
    std::vector<float> scores(to_index(row) + 1);
    if (record == nullptr || !score_values(history, lane, row, g, scores)) return std::nullopt;
    const ResolvedPolicy& policy = record->info->policy.at(layer, head);
    const std::vector<std::int32_t> held = history.held_positions(lane, g, row);
    Competition out;
    out.threshold = threshold_at(history, lane, row, g);
    out.margin = kNoValue;
    out.score = kNoValue;
    if (position > row || !std::binary_search(held.begin(), held.end(), position)) {
        out.why_not = "gone";
        return out;
    }
    out.score = scores[to_index(position)];
    if (!policy.evicts()) {
        out.why_not = "none: the lane keeps every token";
        return out;
    }
    const int n = static_cast<int>(held.size());
    const std::vector<Standing> standing_of = standings(history, lane, g, row);
    const auto standing = [&](int index) -> const char* {
        switch (standing_of[to_index(index)]) {
            case Standing::pinned:
                return "pinned";
            case Standing::first:
                return "always kept: one of the first";
            case Standing::newest:
                return "always kept: one of the newest";
            case Standing::protected_:
                return "always kept: protected";
            case Standing::competes:
                break;
        }
        return nullptr;
    };
    out.rank = 1;
    for (int i = 0; i < n; ++i) {
        const int p = held[to_index(i)];
        const char* why = standing(i);
        if (p == position && why != nullptr) out.why_not = why;
        if (why != nullptr) continue;
        ++out.n;
        const float score = scores[to_index(p)];
        // Among equals the older position is evicted first.
        if (p != position && (score > out.score || (score == out.score && p > position))) ++out.rank;
    }
    out.competes = out.why_not.empty();
    if (out.competes) out.margin = out.score - out.threshold;
    return out;
}

std::optional<AttentionSum> attention_sum(const RunHistory& history, int lane, int row, int layer, int head,
                                          std::span<const int> positions) {
    std::vector<float> values(to_index(row) + 1);
    if (!attention_values(history, lane, row, layer, head, values)) return std::nullopt;
    AttentionSum out;
    for (const int p : positions) {
        if (p > row) continue;
        ++out.n;
        const float value = values[to_index(p)];
        if (std::isnan(value) || value == kHiddenValue) continue;
        ++out.n_seen;
        out.sum += double(value);
    }
    return out;
}

std::string eviction_cause(const RunHistory& history, int lane, int kv_head, int position) {
    const int row = history.evicted_at(lane, kv_head, position);
    if (row < 0) return {};
    const int by = lane_of_row(history, lane, row);
    const LaneRecord* record = record_of(history, lane, row);
    const auto policy_text = [](const LaneRecord* r) {
        return r == nullptr ? std::string("by the policy")
                            : fmt::format("by the policy {}",
                                          preset_name(parse_stored_lane_spec(r->info->spec).policy.preset));
    };
    if (row < history.steps().front()->row) return policy_text(record) + ", inside the prompt";
    if (record != nullptr && evicted_in(*record, kv_head, position, true, row)) return policy_text(record);
    // Not by the row itself, so by a command between it and the next row, whose record has the eviction.
    for (const int other : {by, lane}) {
        const LaneRecord* next = history.lane_record(row + 1, other);
        if (next == nullptr || !evicted_in(*next, kv_head, position, false, row + 1)) continue;
        const StepTrace& step = history.at_row(row + 1);
        return command_that_took(step, index_in_step(step, next->info->id), kv_head, position,
                                 history.layout(lane));
    }
    return policy_text(record);
}

}  // namespace keyhole
