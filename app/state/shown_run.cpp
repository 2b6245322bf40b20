#include "app/state/shown_run.h"

#include "engine/policy/lane_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace keyhole {

namespace {

/// Returns the record of a lane at the step that is nearest to a row and has one; null: no step has.
const LaneRecord* nearest_record(const RunHistory& history, int lane, int row) {
    const RunHistory::Lane& known = history.lanes()[to_index(lane)];
    const int from = std::clamp(row, known.first_row, std::max(known.first_row, known.last_row));
    if (const LaneRecord* record = history.lane_record(from, lane)) return record;
    for (int by = 1; by <= static_cast<int>(history.steps().size()); ++by)
        for (const int other : {from - by, from + by})
            if (const LaneRecord* record = history.lane_record(other, lane)) return record;
    return nullptr;
}

/// Returns the record of a lane at a row, which stays when the history goes on; null: there is none.
std::shared_ptr<const LaneRecord> kept_record(const RunHistory& history, int lane, int row) {
    const LaneRecord* record = history.lane_record(row, lane);
    if (record == nullptr) return nullptr;
    const auto step = std::lower_bound(history.steps().begin(), history.steps().end(), row,
                                       [](const auto& s, int r) { return s->row < r; });
    return {*step, record};
}

/// Returns what a lane of the list is called whose records stand for another one; "" if none is listed: it
/// was removed, or is what that lane was before.
std::string parent_words(const RunState& run, int known) {
    for (int lane = 0; lane < run.lane_editor.n_lanes(); ++lane)
        if (run.history_lane(lane) == known) return fmt::format("lane {}", lane);
    return "";
}

}  // namespace

std::string words_before_first_step(const RunState& run) {
    return run.status.phase == EnginePhase::prefill ? "reading the prompt" : "joins with the next step";
}

namespace {

LaneOnShow joined(const RunState& run, int lane, int row) {
    LaneOnShow shown;
    shown.spec = run.lane_editor.lanes()[to_index(lane)];
    const std::optional<int> own = run.history_lane(lane);
    shown.known = run.drawn_lane(lane);
    if (!shown.known) {
        using Records = RunState::Records;
        const Records records = run.records();
        shown.note = records == Records::reading  ? "no numbers until the prompt is read"
                     : records == Records::unread ? "no numbers: the prompt was not read"
                                                  : words_before_first_step(run);
        return shown;
    }
    const RunHistory::Lane& lane_of_records = run.history.lanes()[to_index(*shown.known)];
    shown.id = lane_of_records.id;
    shown.source = own ? LaneOnShow::Source::own : LaneOnShow::Source::parent;
    if (own) shown.record = kept_record(run.history, *own, row);
    const LaneRecord* said =
        shown.record != nullptr ? shown.record.get() : nearest_record(run.history, *shown.known, row);
    if (said == nullptr) return shown;
    LaneSpec recorded = parse_stored_lane_spec(said->info->spec);
    recorded.name = shown.spec.name;  // a lane has one name at all its steps
    shown.old_settings = !same_results(shown.spec, recorded) && !is_with_system_part(shown.spec, recorded);
    shown.spec = std::move(recorded);
    return shown;
}

void say_what_records_are(LaneOnShow& shown, const RunState& run, int lane) {
    using Records = RunState::Records;
    if (!shown.known) return;
    if (run.records() != Records::current) {
        shown.mark = "run before";
        shown.note = run.records() == Records::reading
                         ? "Of the run before, until the new prompt is read."
                         : "Of the run before: the new prompt was not read. Restart reads it.";
    } else if (shown.source == LaneOnShow::Source::parent) {
        const std::string parent = parent_words(run, *shown.known);
        shown.mark = (parent.empty() ? "its state before" : parent) + " until its next step";
        shown.note =
            fmt::format("Lane {} has no step of its own yet. This is {}.", lane,
                        parent.empty() ? "the lane that it was made from" : parent + ", which it copies");
    } else if (shown.old_settings) {
        shown.mark = kOldSettings;
        shown.note =
            fmt::format("Of the {} at this step, with {}. Lane {} has other settings by now{}.",
                        run.live() ? "run as it is" : "trace", format_lane_spec(shown.spec), lane,
                        run.live() ? "" : ", which change nothing in the trace: they are for a new run");
    }
}

}  // namespace

const LaneOnShow& RunOnShow::at(int lane) const {
    static const LaneOnShow kGone;
    return lane >= 0 && lane < std::ssize(lanes) ? lanes[to_index(lane)] : kGone;
}

std::vector<int> looks_of_lanes(const RunState& run) {
    const int n = run.lane_editor.n_lanes();
    std::vector<std::optional<int>> own(to_index(n));
    std::vector<int> had, present, looks;
    for (const RunHistory::Lane& lane : run.history.lanes()) had.push_back(lane.look);
    const auto is_listed = [&](int known) {
        for (int lane = 0; lane < n; ++lane)
            if (run.history_lane(lane) == known) return true;
        return false;
    };
    for (int lane = 0; lane < n; ++lane) {
        std::optional<int> known = run.history_lane(lane);
        // One that waits for its first step with other shared heads is the lane that it was.
        if (const std::optional<int> drawn = run.drawn_lane(lane); !known && drawn && !is_listed(*drawn))
            known = drawn;
        if (known) own[to_index(lane)] = run.history.lanes()[to_index(*known)].look;
        if (known) present.push_back(*own[to_index(lane)]);
    }
    const bool is_new = present.empty();  // none of them is of the run on show
    for (int lane = 0; lane < n; ++lane) {
        looks.push_back(is_new ? lane : own[to_index(lane)].value_or(next_look(had, present)));
        had.push_back(looks.back());
        present.push_back(looks.back());
    }
    return looks;
}

RunOnShow run_on_show(const RunState& run, int row) {
    RunOnShow shown;
    shown.run = run.has_steps() ? run.history.run().id : 0;
    shown.row = row;
    shown.records = run.records();
    std::vector<LaneSpec> specs;
    for (int lane = 0; lane < run.lane_editor.n_lanes(); ++lane) {
        shown.lanes.push_back(joined(run, lane, row));
        specs.push_back(shown.lanes.back().spec);
    }
    const std::vector<std::string> names = lane_names(specs);
    const std::vector<int> looks = looks_of_lanes(run);
    for (int lane = 0; lane < run.lane_editor.n_lanes(); ++lane) {
        LaneOnShow& one = shown.lanes[to_index(lane)];
        one.name = names[to_index(lane)];
        one.title = fmt::format("{} {}", lane, one.name);
        one.look = looks[to_index(lane)];
        say_what_records_are(one, run, lane);
    }
    return shown;
}

}  // namespace keyhole
