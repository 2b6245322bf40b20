#include "app/lessons/lesson_runner.h"

#include "app/lessons/lesson_file.h"
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/run/run_settings.h"
#include "engine/session/session.h"
#include "engine/trace/lane_failure.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace keyhole {

namespace {

/// Returns the record of a lane (as the user numbers them) in a copy of the last step.
LaneRecord& lane_of(StepTrace& step, int lane) {
    if (lane >= static_cast<int>(step.lanes.size()))
        fail(ErrorCode::wrong_use, "there is no lane {} whose records could be altered", lane);
    return step.lanes[to_index(lane)];
}

/// Finds a token that a lane stores after the last row, and says that it has left.
void alter_mask(LaneRecord& record, const RunHistory& history, int row) {
    const int lane = history.lane_from_id(record.info->id).value();
    for (int p = 0; p <= row; ++p)
        if (history.stored(lane, 0, p, row)) {
            Eviction e;
            e.kv_head = 0;
            e.position = p;
            e.row = row;
            record.evictions.push_back(e);
            return;
        }
    fail(ErrorCode::wrong_use, "the lane stores no token that could leave");
}

void repeat_eviction(LaneRecord& record, const StepList& steps) {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step)
        for (const LaneRecord& known : (*step)->lanes)
            if (known.info->id == record.info->id && !known.evictions.empty()) {
                record.evictions.push_back(known.evictions.back());
                return;
            }
    fail(ErrorCode::wrong_use, "the lane has evicted no token that could leave twice");
}

void scale_attention(LaneRecord& record) {
    if (record.rows == nullptr) fail(ErrorCode::wrong_use, "the lane's attention is not recorded");
    auto block = std::make_shared<RowBlock>(*record.rows);
    for (std::uint16_t& value : block->attention) value = fp16_from_float(1.1f * float_from_fp16(value));
    record.rows = std::move(block);
}

}  // namespace

StepList altered_records(const StepList& steps, const AlterRecords& fault) {
    if (steps.empty()) fail(ErrorCode::wrong_use, "there are no records to alter yet");
    StepList altered = steps;
    auto last = std::make_shared<StepTrace>(*steps.back());
    LaneRecord& record = lane_of(*last, fault.lane);
    if (fault.kind == "mask") {
        RunHistory history;
        history.update(steps);
        alter_mask(record, history, last->row);
    } else if (fault.kind == "twice") {
        repeat_eviction(record, steps);
    } else {
        scale_attention(record);
    }
    altered.back() = std::move(last);
    return altered;
}

RunSpec run_spec_of(const LessonRun& run) {
    RunSpec spec;
    spec.prompt = words_of(run.prompt);
    for (const std::string& lane : run.lanes) spec.lanes.push_back(parse_lane_spec(lane));
    spec.follow = run.follow;
    spec.chat = run.chat;
    AnswerEnd end;
    end.stop = run.stop;
    spec.answer_end = end;
    spec.requested.attention = true;
    spec.requested.scores = true;
    return spec;
}

std::vector<Command> engine_commands(const LessonCommand& command, const RunHistory& history) {
    if (const auto* own = std::get_if<Command>(&command.what)) return {*own};
    if (const auto* back = std::get_if<GoBack>(&command.what))
        return {Rewind{history.n_prompt() - 1 + back->n}};
    std::vector<Command> commands;
    if (const auto* touch = std::get_if<TouchWords>(&command.what)) {
        const std::optional<TokenSpan> span = span_of(TokenSet{touch->words, {}, {}}, history, 0);
        if (!span) fail(ErrorCode::wrong_use, "'{}': the words are not in the text", command.text);
        for (int p = span->first; p <= span->last; ++p) {
            const TokenPlace at{touch->lane, p, touch->layer, touch->head};
            if (touch->verb == "evict")
                commands.emplace_back(EvictToken{at});
            else if (touch->verb == "pin")
                commands.emplace_back(PinToken{at});
            else
                commands.emplace_back(UnpinToken{at});
        }
    }
    return commands;
}

LessonSession::LessonSession(std::shared_ptr<const Model> model, const BackendOptions& backend,
                             const LessonRun& run, ProgressReport progress)
    : backend_(make_backend(model, for_measures(backend), nullptr)),
      recorder_(Recorder::kExportBudgetBytes),
      progress_(std::move(progress)) {
    session_ = std::make_unique<Session>(std::move(model), *backend_, run_spec_of(run));
    record(session_->prefill(progress_));
    if (!run.then.empty()) session_->apply(SayText{words_of(run.then)}, progress_);
    take_records();
}

/// A lesson's claims are about all its lanes, so none may have failed.
void LessonSession::record(const std::shared_ptr<const StepTrace>& step) {
    throw_if_failed(*step);
    recorder_.push(step);
}

LessonSession::~LessonSession() = default;

void LessonSession::take_records() {
    history_.update(recorder_.snapshot().steps);
}

void LessonSession::decode(int n) {
    for (int i = 0; i < n; ++i) {
        if (progress_ && !progress_(double(i) / n)) fail(ErrorCode::cancelled, "cancelled");
        const std::shared_ptr<const StepTrace> step = session_->step(progress_);
        if (step == nullptr) break;
        record(step);
    }
    take_records();
}

void LessonSession::apply(const LessonCommand& command) {
    if (altered_) fail(ErrorCode::wrong_use, "'{}': altered records cannot be continued", command.text);
    if (const auto* steps = std::get_if<DecodeSteps>(&command.what)) {
        decode(steps->n);
        return;
    }
    if (const auto* fault = std::get_if<AlterRecords>(&command.what)) {
        const StepList altered = altered_records(history_.steps(), *fault);
        history_ = RunHistory();
        history_.update(altered);
        altered_ = true;
        return;
    }
    for (const Command& own : engine_commands(command, history_)) {
        session_->apply(own, progress_);
        if (turns_back(own)) {
            recorder_.rewind(session_->next_row() - 1);
            while (session_->catching_up())
                if (const auto step = session_->step(progress_)) record(step);
            take_records();
        }
    }
    answers_.clear();
}

void LessonSession::answer() {
    while (session_->extend_answers(progress_))
        if (progress_ && !progress_(0)) fail(ErrorCode::cancelled, "cancelled");
    answers_ = session_->answers();
}

Evidence LessonSession::evidence() {
    Evidence evidence;
    evidence.history = &history_;
    for (const LaneRecord& lane : history_.steps().back()->lanes)
        evidence.lanes.push_back(history_.lane_from_id(lane.info->id).value_or(-1));
    while (evidence.lanes.size() < answers_.size()) evidence.lanes.push_back(-1);
    evidence.answers = answers_;
    for (const LaneSpec& spec : settings_at(session_->run_spec()).lane_specs())
        evidence.specs.push_back(format_lane_spec(spec));
    if (!altered_)
        evidence.restored = [this](const CounterfactualRequest& asked) -> std::optional<Counterfactual> {
            return session_->counterfactual(asked.lane, asked.position, progress_, asked.row, asked.n_tokens);
        };
    return evidence;
}

bool StepCheck::holds() const {
    return fault.empty() &&
           std::all_of(claims.begin(), claims.end(), [](const Measured& m) { return m.holds; });
}

bool LessonCheck::holds() const {
    return std::all_of(steps.begin(), steps.end(), [](const StepCheck& step) { return step.holds(); });
}

std::vector<int> LessonCheck::failing() const {
    std::vector<int> numbers;
    for (std::size_t i = 0; i < steps.size(); ++i)
        if (!steps[i].holds()) numbers.push_back(static_cast<int>(i) + 1);
    return numbers;
}

LessonCheck check_lesson(const Lesson& lesson, const LessonModels& models, const BackendOptions& backend,
                         const ProgressReport& progress, const LessonStepSeen& seen) {
    LessonCheck check;
    std::unique_ptr<LessonSession> session;
    std::string lost;  // why the run of the steps before cannot go on
    // Prompt, commands and answers of a step each report 0 to 1; a bar never goes back.
    const auto n_steps = static_cast<double>(lesson.steps.size());
    double begin = 0, reached = 0;
    const ProgressReport whole = [&](double done) {
        reached = std::max(reached, begin + done / n_steps);
        return !progress || progress(reached);
    };
    for (std::size_t i = 0; i < lesson.steps.size(); ++i) {
        const LessonStep& step = lesson.steps[i];
        StepCheck& now = check.steps.emplace_back();
        begin = static_cast<double>(i) / n_steps;
        if (!whole(0)) fail(ErrorCode::cancelled, "cancelled");
        try {
            if (i == 0 || step.run) {
                lost.clear();
                const LessonRun& run = step.run ? *step.run : lesson.run;
                session.reset();
                session = std::make_unique<LessonSession>(models(run.model), backend, run, whole);
            }
            if (!lost.empty()) fail(ErrorCode::wrong_use, "{}", lost);
            for (const LessonCommand& command : step.commands) session->apply(command);
            for (const LessonCommand& command : step.reveal_commands) session->apply(command);
            if (seen || std::any_of(step.claims.begin(), step.claims.end(),
                                    [](const Claim& claim) { return claim.measure == "answer"; }))
                session->answer();
            const Evidence evidence = session->evidence();
            for (const Claim& claim : step.claims) now.claims.push_back(measure_claim(claim, evidence));
            if (seen) seen(static_cast<int>(i), evidence);
        } catch (const Error& error) {
            if (error.code() == ErrorCode::cancelled) throw;
            now.fault = lost = error.what();
        }
    }
    return check;
}

Lesson on_model(Lesson lesson, const std::string& model) {
    const std::string own = lesson.run.model;
    lesson.run.model = model;
    for (LessonStep& step : lesson.steps)
        if (step.run && step.run->model == own) step.run->model = model;
    return lesson;
}

}  // namespace keyhole
