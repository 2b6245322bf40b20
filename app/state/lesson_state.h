/// Holds the lesson on show: the step, what the class predicted, and what its run measured. lesson_steps.h
/// moves it on. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/lessons/lesson_list.h"
#include "app/lessons/lesson_runner.h"
#include "app/state/background_job.h"
#include "app/state/run_state.h"
#include "app/view/view_state.h"

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace keyhole {

/// The run and the view from before the first lesson opened.
struct BeforeLessons {
    std::uint64_t run_id = 0;  ///< RunInfo::id
    RunSetup setup;
    bool follow = true;
    std::vector<LoggedCommand> commands;
    int first_row = 0, last_row = 0;
    std::optional<OpenedRun> trace;  ///< in place of a live run
    Annotations annotations;
    ViewState view;
};

struct LessonState {
    std::vector<ListedLesson> all;  ///< all lessons, as of the last list
    bool lists = false;             ///< the list of lessons is shown
    std::optional<ListedLesson> shown;
    std::string wanted;  ///< lesson to open once the first run is there; empty: none

    int step = 0;
    bool revealed = false;
    std::optional<int> choice;        ///< the predicted choice
    std::optional<double> guess;      ///< the predicted value of a slider
    std::optional<int> token;         ///< the position of the predicted token; set by the reveal
    std::vector<Measured> now;        ///< measured by the step's claims, once it is revealed
    std::vector<Measured> at_reveal;  ///< the same before the user played; empty: not known yet
    std::string fault;                ///< why the step cannot be shown; empty: it can

    bool shows_notes = false, edits = false;

    // A check of the lesson on another model than its own.
    std::string model;  ///< the model in place of the lesson's own; empty: its own
    bool asks = false;  ///< the lesson waits for the choice of the model
    BackgroundJob<LessonCheck> check_job;
    std::shared_ptr<const LessonCheck> check;  ///< of the loaded model; null: not known yet
    bool gets_model = false;                   ///< the lesson begins when its model is downloaded

    std::optional<BeforeLessons> before;  ///< shown again when lessons close
    bool restores_run = false;            ///< its run is being restored now
    /// The prompt and model of the run that the lesson began. A user who starts another run keeps that.
    std::optional<std::pair<std::string, std::filesystem::path>> begun;
    bool altered = false;    ///< the lesson shows records that it altered
    bool is_played = false;  ///< the run began with a lane that the user played with

    // Work that the run still has to do.
    std::deque<LessonCommand> waiting;
    bool awaits_run = false;  ///< commands were sent, and the run has not been idle since
    bool look_due = false;    ///< the frame loop has to show what the step looks at
    double speed_before = -1;
    /// A position that the text scrolls to, as long as the run ends with this row.
    std::optional<std::pair<int, int>> in_sight;
    std::optional<CounterfactualRequest>
        requested_counterfactual;  ///< the engine was asked about these tokens, for a claim

    /// The run as the lesson left it, to see whether the user has changed it since.
    using RunMark = std::tuple<std::uint64_t, int, std::size_t, std::vector<std::string>>;
    RunMark mark;
    using MeasuredOf = std::tuple<std::uint64_t, int, const void*, const void*>;
    std::optional<MeasuredOf> measured_of;

    bool open() const { return shown.has_value() || lists; }
    const Lesson& lesson() const { return shown->lesson; }
    const LessonStep& at() const { return shown->lesson.steps[static_cast<std::size_t>(step)]; }
    /// Returns true if no work of the lesson is in progress.
    bool is_idle() const { return waiting.empty() && !awaits_run && !check_job.running() && wanted.empty(); }
};

}  // namespace keyhole
