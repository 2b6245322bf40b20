/// Runs lessons without a window: executes what their steps do and measures their claims. Used by one thread.
#pragma once

#include "app/lessons/lesson_claims.h"
#include "engine/base/backend_options.h"
#include "engine/run/progress_part.h"
#include "engine/run/run_spec.h"
#include "engine/trace/recorder.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

class Backend;
class Session;

/// Returns records as a broken cache would have made them; see AlterRecords. Throws Error(wrong_use) if the
/// lane has nothing to alter. The given records do not change.
StepList altered_records(const StepList& steps, const AlterRecords& fault);

/// Returns the run that the window or a session starts for a lesson.
RunSpec run_spec_of(const LessonRun& run);
/// Returns the engine's commands for a step that touches words, or goes back. history: of the run so far.
/// Throws Error(wrong_use) if the words are not in the text.
std::vector<Command> engine_commands(const LessonCommand& command, const RunHistory& history);

/// One run of a lesson.
class LessonSession {
  public:
    /// Processes the prompt. Throws what Session does, and Error(cancelled) if progress returns false.
    LessonSession(std::shared_ptr<const Model> model, const BackendOptions& backend, const LessonRun& run,
                  ProgressReport progress = {});
    ~LessonSession();
    void apply(const LessonCommand& command);
    /// Completes the lanes' own answers.
    void answer();
    Evidence evidence();
    const RunHistory& history() const { return history_; }

  private:
    void decode(int n);
    void record(const std::shared_ptr<const StepTrace>& step);
    void take_records();
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Session> session_;
    Recorder recorder_;
    RunHistory history_;
    std::vector<LaneAnswer> answers_;
    ProgressReport progress_;
    bool altered_ = false;  // the history is no longer that of the session
};

struct StepCheck {
    std::vector<Measured> claims;
    std::string fault;  ///< why the step could not be run
    bool holds() const;
};

struct LessonCheck {
    std::vector<StepCheck> steps;
    bool holds() const;
    /// Returns the numbers (from 1) of the steps that do not show what they say.
    std::vector<int> failing() const;
};

/// Returns a loaded model by its name in the catalogue, or by what --model takes. May throw Error.
using LessonModels = std::function<std::shared_ptr<const Model>(const std::string& name)>;

/// Receives the run as it is at the end of a step.
using LessonStepSeen = std::function<void(int step, const Evidence& evidence)>;

/// Runs all steps. A step that cannot run has its fault, and so have those after it on the same run. Throws
/// Error(cancelled) alone.
LessonCheck check_lesson(const Lesson& lesson, const LessonModels& models, const BackendOptions& backend,
                         const ProgressReport& progress = {}, const LessonStepSeen& seen = {});
/// The same lesson with another model in place of its own; steps that name a third model keep it.
Lesson on_model(Lesson lesson, const std::string& model);

}  // namespace keyhole
