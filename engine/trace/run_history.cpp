#include "engine/trace/run_history.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <algorithm>
#include <atomic>
#include <limits>

namespace keyhole {

namespace {

// Counts over all histories, so that a history that replaces another has a new generation.
std::atomic<std::uint64_t> g_generations{0};

}  // namespace

void RunHistory::update(const StepList& steps) {
    if (steps.empty()) {
        start_over();
        return;
    }
    // A run only grows: the known rows are the beginning of the list, though their row blocks may have been
    // thinned out. A row and its branch identify a record and everything before it.
    const bool grown = !steps_.empty() && run_id_ == steps.front()->run->id &&
                       steps.size() >= steps_.size() && steps.front()->row == steps_.front()->row &&
                       steps[steps_.size() - 1]->row == last_row() &&
                       steps[steps_.size() - 1]->branch == steps_.back()->branch;
    if (!grown) start_over();
    const std::size_t known = steps_.size();
    steps_ = steps;
    run_id_ = run().id;
    reserve(n_positions());
    for (std::size_t i = known; i < steps_.size(); ++i) fold(*steps_[i]);
}

void RunHistory::start_over() {
    steps_.clear();
    lanes_.clear();
    capacity_ = 0;
    run_id_ = 0;
    generation_ = ++g_generations;
}

void RunHistory::reserve(int n_positions) {
    if (n_positions <= capacity_) return;
    const int capacity = std::max(n_positions, 2 * capacity_);
    for (Lane& lane : lanes_) {
        const int n_kv_heads = (lane.layout != nullptr ? *lane.layout : run().layout).n_kv_heads();
        std::vector<std::int32_t> table(to_index(n_kv_heads) * to_index(capacity), -1);
        for (int g = 0; g < n_kv_heads; ++g)
            std::copy_n(lane.evicted_at.begin() + std::int64_t{g} * capacity_, capacity_,
                        table.begin() + std::int64_t{g} * capacity);
        lane.evicted_at = std::move(table);
    }
    capacity_ = capacity;
}

void RunHistory::add_lane(const LaneInfo& info, int row) {
    Lane lane;
    const std::optional<int> parent =
        info.forked_from >= 0 ? lane_from_id(info.forked_from) : std::optional<int>();
    if (parent) {
        lane = lanes_[to_index(*parent)];
        lane.forked_from = *parent;
        lane.forked_at = info.forked_at;
        lane.replayed = info.replayed;
        if (info.replayed) {
            const KvLayout& layout = info.layout != nullptr ? *info.layout : run().layout;
            lane.layout = info.layout;
            lane.evicted_at.assign(to_index(layout.n_kv_heads()) * to_index(capacity_), -1);
        }
    } else {
        // A lane that is added during a run was fed lane 0's tokens so far.
        lane.tokens = lanes_.empty() ? run().prompt_tokens : lanes_.front().tokens;
        lane.tokens.resize(std::min(lane.tokens.size(), std::max(to_index(row), to_index(n_prompt()))));
        lane.layout = info.layout;
        const KvLayout& layout = lane.layout != nullptr ? *lane.layout : run().layout;
        lane.evicted_at.assign(to_index(layout.n_kv_heads()) * to_index(capacity_), -1);
    }
    lane.id = info.id;
    lane.first_row = row;
    lanes_.push_back(std::move(lane));
}

int next_look(std::span<const int> had, std::span<const int> present) {
    constexpr int kLooks = 8;  // colours
    const auto lowest = [](std::span<const int> used) {
        int look = 0;
        while (std::ranges::find(used, look) != used.end()) ++look;
        return look;
    };
    const int fresh = lowest(had);
    return fresh < kLooks ? fresh : lowest(present);
}

/// place: of the lane in the step.
int RunHistory::look_of_new(const LaneInfo& info, const StepTrace& step, std::size_t place) const {
    const std::vector<int>& chosen = run().start.looks;
    if (&step == steps_.front().get() && place < run().start.lanes.size())
        return place < chosen.size() ? chosen[place] : static_cast<int>(place);
    const auto is_here = [&](int id) {
        return std::ranges::any_of(step.lanes, [&](const LaneRecord& lane) { return lane.info->id == id; });
    };
    // A lane that shares KV heads in another way takes the place of the one before.
    if (const std::optional<int> parent = lane_from_id(info.forked_from);
        parent && !is_here(info.forked_from))
        return lanes_[to_index(*parent)].look;
    std::vector<int> had, present;
    for (const Lane& lane : lanes_) {
        had.push_back(lane.look);
        if (is_here(lane.id)) present.push_back(lane.look);
    }
    return next_look(had, present);
}

void RunHistory::fold(const StepTrace& step) {
    // Add all new lanes first: a copy begins with its parent's state before this row.
    for (std::size_t i = 0; i < step.lanes.size(); ++i) {
        const LaneInfo& info = *step.lanes[i].info;
        if (lane_from_id(info.id)) continue;
        const int look = look_of_new(info, step, i);
        add_lane(info, step.row);
        lanes_.back().look = look;
    }
    for (const LaneRecord& record : step.lanes) {
        Lane& lane = lanes_[to_index(*lane_from_id(record.info->id))];
        // Once a lane has ended or failed, its records carry nothing new, until the user's input continues
        // it.
        if (!lane.ended || record.attended_tokens > 0) {
            lane.last_row = step.row;
            // A lane that was removed and came back has read lane 0's tokens meanwhile.
            const std::vector<int>& read = lanes_.front().tokens;
            while (static_cast<int>(lane.tokens.size()) < step.row && lane.tokens.size() < read.size())
                lane.tokens.push_back(read[lane.tokens.size()]);
            if (step.row >= static_cast<int>(lane.tokens.size()))
                lane.tokens.resize(to_index(step.row) + 1, record.token);
        }
        lane.ended = record.ended || !record.failure.empty();
        for (const Eviction& e : record.evictions)
            lane.evicted_at[to_index(std::int64_t{e.kv_head} * capacity_ + e.position)] = e.row;
    }
}

const StepTrace& RunHistory::at_row(int row) const {
    const int index = row - steps_.front()->row;
    if (index >= 0 && index < static_cast<int>(steps_.size()) && steps_[to_index(index)]->row == row)
        return *steps_[to_index(index)];
    const auto it =
        std::lower_bound(steps_.begin(), steps_.end(), row, [](const auto& s, int r) { return s->row < r; });
    KH_ASSERT(it != steps_.end() && (*it)->row == row, "no record of row {}", row);
    return **it;
}

std::optional<int> RunHistory::lane_from_id(int id) const {
    for (std::size_t i = 0; i < lanes_.size(); ++i)
        if (lanes_[i].id == id) return static_cast<int>(i);
    return std::nullopt;
}

const LaneRecord* RunHistory::lane_record(int row, int lane) const {
    if (row < steps_.front()->row || row > last_row()) return nullptr;
    for (const LaneRecord& record : at_row(row).lanes)
        if (record.info->id == lanes_[to_index(lane)].id) return &record;
    return nullptr;
}

std::int32_t RunHistory::evicted_at(int lane, int kv_head, int position) const {
    return lanes_[to_index(lane)].evicted_at[to_index(std::int64_t{kv_head} * capacity_ + position)];
}

bool RunHistory::stored(int lane, int kv_head, int position, int row) const {
    const std::int32_t evicted = evicted_at(lane, kv_head, position);
    return position <= row && (evicted < 0 || evicted > row);
}

bool RunHistory::held(int lane, int kv_head, int position, int row) const {
    const std::int32_t evicted = evicted_at(lane, kv_head, position);
    return position <= row && (evicted < 0 || evicted >= row);
}

bool RunHistory::hidden(int lane, int kv_head, int position, int row) const {
    const LaneRecord* record = lane_record(row, lane);
    if (!held(lane, kv_head, position, row)) return false;
    if (!record) {
        const std::vector<int>& window = run().config.window;
        const int seen = window.empty() ? 0 : window[to_index(layout(lane).kv_head(kv_head).owner_layer)];
        return seen > 0 && position <= row - seen;
    }
    if (!record->hidden) return false;
    // Callers ask for one position at a time, and several threads do so while figures are drawn. Holding the
    // set keeps its address from being reused.
    struct Unpacked {
        std::shared_ptr<const HiddenSet> set;
        int kv_head = -1, row = -1;
        std::vector<std::uint8_t> hides;  // [position]
    };
    thread_local Unpacked known;
    if (known.set != record->hidden || known.kv_head != kv_head || known.row != row) {
        known = {record->hidden, kv_head, row, std::vector<std::uint8_t>(to_index(row) + 1, 0)};
        int i = 0;
        for (int p = 0; p <= row; ++p)
            if (held(lane, kv_head, p, row)) known.hides[to_index(p)] = record->hidden->hides(kv_head, i++);
    }
    return known.hides[to_index(position)] != 0;
}

bool RunHistory::attended(int lane, int kv_head, int position, int row) const {
    return held(lane, kv_head, position, row) && !hidden(lane, kv_head, position, row);
}

std::vector<std::int32_t> RunHistory::held_positions(int lane, int kv_head, int row) const {
    std::vector<std::int32_t> positions;
    held_positions(lane, kv_head, row, positions);
    return positions;
}

void RunHistory::held_positions(int lane, int kv_head, int row, std::vector<std::int32_t>& out) const {
    out.resize(to_index(row) + 1);
    const std::int32_t* evicted =
        &lanes_[to_index(lane)].evicted_at[to_index(std::int64_t{kv_head} * capacity_)];
    const auto bound = static_cast<std::uint32_t>(row);
    std::size_t n = 0;
    for (std::int32_t p = 0; p <= row; ++p) {  // branch-free: it runs a million times per row at 1,024 heads
        out[n] = p;
        n += static_cast<std::uint32_t>(evicted[p]) >= bound ? 1 : 0;  // -1 (never) is the largest
    }
    out.resize(n);
}

std::vector<std::int32_t> RunHistory::attended_positions(int lane, int kv_head, int row) const {
    std::vector<std::int32_t> positions;
    for (int p = 0; p <= row; ++p)
        if (attended(lane, kv_head, p, row)) positions.push_back(p);
    return positions;
}

bool RunHistory::pinned(int lane, int kv_head, int position, int row) const {
    const LaneRecord* record = lane_record(row, lane);
    if (!record || !record->pins) return false;
    const auto before = [](const Pin& a, const Pin& b) {
        return std::pair(a.kv_head, a.position) < std::pair(b.kv_head, b.position);
    };
    return std::binary_search(record->pins->begin(), record->pins->end(), Pin{kv_head, position}, before);
}

/// Calls set(position, index) for the held positions, with ascending index in [begin, end). The counts must
/// agree.
template <class Set>
void RunHistory::scatter(int lane, int kv_head, int row, std::int64_t begin, std::int64_t end,
                         Set set) const {
    std::int64_t i = begin;
    for (int p = 0; p <= row && i <= end; ++p) {
        if (!held(lane, kv_head, p, row)) continue;
        if (i < end) set(to_index(p), to_index(i));
        ++i;
    }
    KH_ASSERT(i == end, "row {} of KV head {}: attended set and row block differ", row, kv_head);
}

bool RunHistory::attention_row(int lane, int row, int layer, int head, std::span<float> out) const {
    const LaneRecord* record = lane_record(row, lane);
    if (!record || !record->rows || record->rows->attention.empty()) return false;
    KH_ASSERT(static_cast<int>(out.size()) > row, "{} values for row {}", out.size(), row);
    const RowBlock& block = *record->rows;
    const std::size_t index = to_index(layer * run().layout.n_heads() + head);
    std::fill(out.begin(), out.end(), 0.0f);
    scatter(lane, layout(lane).kv_head_from_head(layer, head), row, block.head_offset[index],
            block.head_offset[index + 1],
            [&](std::size_t p, std::size_t i) { out[p] = float_from_fp16(block.attention[i]); });
    return true;
}

bool RunHistory::score_row(int lane, int row, int kv_head, std::span<float> out) const {
    const LaneRecord* record = lane_record(row, lane);
    if (!record || !record->rows || record->rows->scores.empty()) return false;
    KH_ASSERT(static_cast<int>(out.size()) > row, "{} values for row {}", out.size(), row);
    const RowBlock& block = *record->rows;
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
    scatter(lane, kv_head, row, block.offset[to_index(kv_head)], block.offset[to_index(kv_head) + 1],
            [&](std::size_t p, std::size_t i) { out[p] = block.scores[i]; });
    return true;
}

}  // namespace keyhole
