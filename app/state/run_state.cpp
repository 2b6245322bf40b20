#include "app/state/run_state.h"

#include "app/state/shown_run.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/resource_use.h"
#include "engine/live/engine.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/system_part.h"
#include "engine/run/run_settings.h"

#include <numeric>
#include <utility>

namespace keyhole {

namespace {

/// Compares settings with the spec of a record, which may have been written in another form.
bool is_spec(const LaneSpec& settings, const std::string& spec) {
    LaneSpec recorded = parse_stored_lane_spec(spec);
    if (same_results(settings, recorded)) return true;
    recorded.name = settings.name;
    return is_with_system_part(settings, recorded);
}

}  // namespace

RunState::RunState(BackendOptions backend, std::function<void()> wake)
    : backend_options(backend),
      lane_editor([this](Command command) {
          if (live()) engine_->send(std::move(command));
      }),
      engine_(std::make_unique<Engine>(backend, std::move(wake))) {}

RunState::~RunState() = default;

JobBackend RunState::job_backend() const {
    return {backend_options, engine_->device_backend()};
}

std::shared_ptr<const Model> RunState::model() const {
    return engine_->model();
}

void RunState::start(bool new_backend) {
    if (!starting_)
        starting_ = Starting{0, status.run_id, opened_file, is_recorded_, {}, {}, {}};
    else
        starting_->earlier.emplace_back(starting_->prompt, starting_->guide);
    opened_file.clear();
    is_recorded_ = false;
    if (lane_editor.n_lanes() > 0) setup.lanes = lane_editor.lanes();
    RunSpec run;
    run.prompt = setup.prompt;
    run.lanes = setup.lanes;
    run.seed = setup.seed;
    run.chat = setup.chat;
    run.follow = lane_editor.follow();
    run.answer_end = setup.guide.end;
    run.right_answer = setup.guide.answer;
    run.watch = setup.guide.watch;
    run.looks = looks_of_lanes(*this);
    std::vector<int> usual(run.looks.size());
    std::iota(usual.begin(), usual.end(), 0);
    if (run.looks == usual) run.looks.clear();  // a run has them without naming them
    run.requested.attention = true;
    run.requested.scores = true;
    if (lane_editor.n_lanes() == 0) lane_editor.reset(setup.lanes, lane_editor.follow());
    lane_editor.start();
    starting_->prompt = setup.prompt;
    starting_->guide = setup.guide;
    engine_->start(setup.model_folder, std::move(run), new_backend, backend_options.precision);
    starting_->id = engine_->last_request();
}

/// Gives `setup` the prompt of the engine's run again, with what is known about it.
void RunState::take_back_prompt(const Starting& refused) {
    setup.prompt = status.run.prompt;
    for (const auto& [prompt, guide] : refused.earlier)  // of which one may have taken effect
        if (prompt == setup.prompt) begun_prompt_ = prompt, begun_guide_ = guide;
    setup.guide = begun_prompt_ == setup.prompt ? begun_guide_ : PromptGuide{};
}

/// Checks whether the newest start has taken effect or was refused.
void RunState::take_start() {
    if (!starting_ || status.handled < starting_->id) return;
    const Starting start = *std::exchange(starting_, std::nullopt);
    // The first record may have been taken before the start was known to be handled.
    is_recorded_ = has_steps() && history.run().id == status.run_id;
    if (!status.was_refused(start.id)) {
        begun_prompt_ = start.prompt;
        begun_guide_ = start.guide;
        return;
    }
    if (status.run_id != 0) take_back_prompt(start);
    if (const auto model = engine_->model()) setup.model_folder = model->path();
    if (status.run_id != 0 && status.run_id != start.engine_run) return;  // an earlier start was not refused
    opened_file = start.opened_file;
    // Failed: this start cancelled the prompt of the one before it, so that no run is left.
    is_recorded_ = start.is_recorded && status.phase != EnginePhase::failed;
}

void RunState::play() {
    if (live()) engine_->play();
}

void RunState::answer() {
    if (live()) engine_->answer();
}

void RunState::stop(bool work) {
    if (live()) engine_->stop(work);
}

void RunState::step(int n_rows) {
    if (live() && has_steps()) engine_->step(n_rows);
}

void RunState::set_speed(double steps_per_second) {
    speed = steps_per_second;
    engine_->set_speed(steps_per_second);
}

void RunState::need_live_run() const {
    if (!live()) fail(ErrorCode::wrong_use, "an opened trace cannot be changed; start a run");
    if (!has_steps()) fail(ErrorCode::wrong_use, "no run yet");
}

void RunState::need_recorded_run() const {
    need_live_run();
    if (!is_recorded_)
        fail(ErrorCode::wrong_use, "the new run has no step yet; wait for its prompt, or start another one");
    // Until then the records may be of another branch than the status.
    if (!has_taken_requests())
        fail(ErrorCode::wrong_use, "the last change is not carried out yet; wait for it, or stop it");
}

bool RunState::settings_differ_at(int row) const {
    return live() && has_steps() && is_recorded_ &&
           !settings_since(status.run, row, lane_editor.lanes(), lane_editor.follow()).empty();
}

void RunState::rewind(int row, bool keeps_settings) {
    need_live_run();
    if (row < first_row() || row > last_row())
        fail(ErrorCode::wrong_use, "choose a step from {} (the end of the prompt) to {}", first_row(),
             last_row());
    stop();
    const Engine::Together together(*engine_);
    lane_editor.rewind(status.run, row, keeps_settings);
}

int RunState::go_to_branch(int id) {
    need_live_run();
    for (const Branch& branch : status.other_branches) {
        if (branch.id != id) continue;
        stop();
        lane_editor.run(GoToBranch{id});
        return branch.last_row;
    }
    fail(ErrorCode::wrong_use, "there is no other branch {}", id);
}

void RunState::try_settings(int lane, std::optional<LaneSpec> spec) {
    if (live() && has_steps()) engine_->try_settings(lane, std::move(spec));
}

void RunState::request_counterfactual(int lane, int position, int row, int n_tokens) {
    engine_->request_counterfactual(lane, position, row, n_tokens);
}

void RunState::request_ranks(RanksRequest asked) {
    if (live() && has_steps()) engine_->request_ranks(std::move(asked));
}

void RunState::show(OpenedRun& run) {
    engine_->stop();
    starting_.reset();
    opened_file = run.from;
    history = std::move(run.history);
    curves = std::move(run.curves);
    opened_answers = std::move(run.answers);
    stride = 1;
    dense_from = first_row();
    lane_editor.reset(std::move(run.lanes), run.follow);
    lane_editor.start();
    std::vector<int> ids;
    for (const LaneRecord& record : history.steps().back()->lanes) ids.push_back(record.info->id);
    lane_editor.started(history.run().id, ids);
}

/// Gives the lanes of the start the ids that its first record has.
void RunState::name_lanes() {
    std::vector<int> ids;
    for (const LaneRecord& record : history.steps().front()->lanes) ids.push_back(record.info->id);
    lane_editor.started(history.run().id, ids);
}

bool RunState::take_records() {
    if (engine_->recorder().version() == seen_version_) return false;
    const Recorder::Snapshot snapshot = engine_->recorder().snapshot();
    // The records of a new run are taken together with the status that names its lanes.
    const bool is_new =
        !snapshot.steps.empty() && (history.empty() || snapshot.steps.front()->run->id != history.run().id);
    if (is_new && snapshot.steps.front()->run->id != status.run_id) return false;
    seen_version_ = snapshot.version;
    history.update(snapshot.steps);
    is_recorded_ = has_steps() && !starting_ && history.run().id == status.run_id;
    if (is_new) name_lanes();
    stride = snapshot.stride;
    dense_from = snapshot.dense_from;
    constexpr std::size_t kWorthReturning = std::size_t{32} << 20;
    if (snapshot.row_bytes + kWorthReturning < record_use.rows) return_freed_memory();
    record_use = {snapshot.row_bytes, snapshot.budget_bytes, snapshot.scalar_bytes};
    return true;
}

RunState::Changes RunState::refresh() {
    Changes changes;
    if (!live()) return changes;
    if (!starting_ && setup.prompt == begun_prompt_) begun_guide_ = setup.guide;  // the answer may be new
    EngineStatus now = engine_->status();
    changes.visible = now.phase != status.phase || now.progress != status.progress ||
                      now.message != status.message || now.handled != status.handled ||
                      now.counterfactual != status.counterfactual || now.ranks != status.ranks ||
                      now.answers != status.answers || now.answering != status.answering ||
                      now.answers_need_stop != status.answers_need_stop || now.branch != status.branch;
    changes.paused =
        status.phase == EnginePhase::running && now.phase == EnginePhase::idle && !now.message.empty();
    status = std::move(now);
    take_start();
    changes.visible = take_records() || changes.visible;
    changes.refused = std::exchange(seen_refusal_, status.refused) < status.refused;
    // Without a session the lanes are as the user left them, for the next start.
    if (has_taken_requests() && status.has_session)
        changes.lanes = lane_editor.adopt(status.run, status.run_id, status.lane_ids);
    if (has_steps()) curves.update(history);
    return changes;
}

bool RunState::has_taken_requests() const {
    return status.handled == engine_->last_request();
}

bool RunState::idle() const {
    if (!live()) return true;
    return has_taken_requests() && !status.answering && status.phase != EnginePhase::loading &&
           status.phase != EnginePhase::prefill && status.phase != EnginePhase::running;
}

std::optional<int> RunState::history_lane(int lane) const {
    if (!has_steps() || lane < 0 || lane >= lane_editor.n_lanes()) return std::nullopt;
    const LaneKey& key = lane_editor.key(lane);
    return key.run == history.run().id && key.id >= 0 ? history.lane_from_id(key.id) : std::nullopt;
}

std::optional<int> RunState::drawn_lane(int lane) const {
    if (const std::optional<int> own = history_lane(lane)) return own;
    if (!has_steps() || lane < 0 || lane >= lane_editor.n_lanes()) return std::nullopt;
    LaneKey key = lane_editor.key(lane);
    // A copy of a copy may come before the first step of both.
    for (int n = lane_editor.n_lanes(); n > 0 && key.run == history.run().id && key.copy_of >= 0; --n) {
        if (const std::optional<int> parent = history.lane_from_id(key.copy_of)) return parent;
        const int id = std::exchange(key.copy_of, -1);
        for (int i = 0; i < lane_editor.n_lanes(); ++i)
            if (lane_editor.key(i).run == key.run && lane_editor.key(i).id == id) key = lane_editor.key(i);
    }
    return std::nullopt;
}

RunState::Records RunState::records() const {
    if (!live() || is_recorded_ || !has_steps()) return Records::current;
    const bool under_way =
        starting_ || status.phase == EnginePhase::prefill || status.phase == EnginePhase::loading;
    return under_way ? Records::reading : Records::unread;
}

std::optional<RunState::NewSettings> RunState::new_settings(int lane) const {
    const std::optional<int> known = history_lane(lane);
    if (!live() || !known || !is_recorded_) return std::nullopt;
    const LaneSpec& now = lane_editor.lanes()[to_index(lane)];
    const LaneRecord* first = history.lane_record(history.lanes()[to_index(*known)].first_row, *known);
    if (first == nullptr || is_spec(now, first->info->spec)) return std::nullopt;
    NewSettings found{-1, first->info->spec};
    std::shared_ptr<const LaneInfo> same;  // records between two changes share it: few specs are compared
    for (int row = last_row(); row > first_row(); --row) {
        const LaneRecord* record = history.lane_record(row, *known);
        if (record == nullptr || (record->info != same && !is_spec(now, record->info->spec))) break;
        same = record->info;
        found.from = row;
    }
    return found;
}

}  // namespace keyhole
