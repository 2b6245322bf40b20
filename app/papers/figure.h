/// The papers' figures and tables as data: what each shows, what its paper finds, and how it is made here.
/// Plain values; main thread.
#pragma once

#include "app/base/figure_record.h"
#include "app/study/sweep_plot.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace keyhole {

/// Whether a paper's finding is seen in what was measured. mixed: some comparisons surely agree, others
/// surely do not. open: the samples do not decide it. few: so few samples could not decide even a large
/// effect.
/// unseen: the model cannot show it. measured: numbers that nothing decides.
struct PaperVerdict {
    enum class State { none, holds, fails, mixed, open, few, unseen, measured };
    State state = State::none;
    std::string why = {};                  ///< a sentence with the numbers
    FigureRecord::Evidence evidence = {};  ///< that it was decided on; empty: on none
};
/// Returns "Holds here: ...", "Does not hold here: ..." and so on; empty for none.
std::string verdict_text(const PaperVerdict& verdict);
/// Returns the word of FigureRecord for it.
std::string verdict_word(PaperVerdict::State state);

/// Decides a finding by sign_flips(). The rule is the same for both directions:
///
///     holds  all comparisons together are surely ahead, more than half by their mean, none surely behind
///     fails  the reverse
///
/// `why`: the counts, and how many samples would do. Gains are rounded to 1e-6, so that records decide alike.
PaperVerdict decide(FigureRecord::Evidence evidence);

/// The finding of a paper, in a form that a sweep can decide.
struct PaperClaim {
    enum class Kind {
        none,
        ahead,         ///< `lane` is ahead of every other lane at every value
        below_first,   ///< no value of `lane` restores the quality of the first lane
        best_between,  ///< `lane` is best at a value from `low` to `high`, and worse at both ends
        best_value,    ///< `lane` is best with `value`
        ordered,       ///< `lanes`, best first
        memory,        ///< of several models: more bytes of K and V, more quality
    };
    Kind kind = Kind::none;
    std::vector<std::string> lanes = {};  ///< as typed; the first is the one that the claim is about
    double low = 0, high = 0;
    std::string value = {};
    std::string_view measure = {};  ///< of a user's own questions, as the paper has it: "rouge2"
};
/// Returns the measure of the user's own questions that a claim is decided by: the paper's if there, else the
/// first. nullopt: the result has none.
std::optional<std::size_t> measure_of(const PaperClaim& claim, const SweepResult& result);

/// What a paper prints for some lanes, beside our own tasks: a data set, or the mean of several.
struct PaperColumn {
    std::string_view name;
    std::vector<std::pair<std::string_view, double>> values;  ///< by lane as typed
};

/// A picture from the rows of a run, and what it says.
struct RunPicture {
    std::variant<CurvePlot, ValueMap> plot;
    PaperVerdict verdict;
};

/// Comparisons of a run, and how far the first of the two is ahead.
using RunGains = std::vector<std::pair<std::string, double>>;

struct Figure {
    /// sweep: of lanes over values; text: follows a text; run: the rows of a run; elsewhere: another command
    /// makes it.
    enum class From { sweep, text, run, elsewhere };
    std::string_view name = {}, title = {};
    From from = From::sweep;
    std::string_view finding = {};       ///< of the paper
    std::string_view paper_values = {};  ///< numbers that it prints; empty: none
    std::string_view options = {};  ///< of the command, as the list shows it; elsewhere: the whole command
    double minutes = 1;             ///< about, on the shipped model and two cores
    std::string_view seen_on = {};  ///< the model that shows the effect
    std::vector<std::string> lanes = {};
    std::vector<std::string> varies = {};
    std::vector<double> share_lines = {};
    std::string_view task = "needle";             ///< unless --task or --text is given
    bool of_text = false;                         ///< of perplexity unless a task is given
    bool of_models = false;                       ///< needs several --model
    bool of_paper_text = false;                   ///< perplexity is what the paper itself shows
    bool has_shorter_context = false;             ///< with the baseline of a shorter context
    std::vector<PaperColumn> paper_columns = {};  ///< several tasks: drawn beside them
    std::string_view confounds = {};              ///< settings whose effects the picture cannot separate
    PaperClaim claim = {};
    RunPicture (*draw)(const RunHistory& run) = nullptr;
    /// Decides the finding over the runs of several prompts. nullptr: the picture's numbers are all that is
    /// said.
    RunGains (*gains)(const RunHistory& run) = nullptr;
    std::string_view subject = {};  ///< what the paper puts first in `gains`
};

const std::vector<Figure>& figures();
/// Returns the command line that makes a figure, with OUT for its folder.
std::string command_of(const Figure& figure);

/// Decides a claim by the results of a sweep: pairs of lanes, question by question.
PaperVerdict judge(const PaperClaim& claim, const SweepResult& result);

/// A measured line of a paper's table of speed.
struct SpeedLine {
    std::string label;
    std::string printed;  ///< by the paper; "-", "OOM" and words are no numbers
    double tokens_per_s = 0;
    double by_bytes = 1;                   ///< tokens a second over the first line's, if bytes alone decided
    double n_lanes_that_fit = 0;           ///< into 12 GB
    double attention_ms = 0, step_ms = 0;  ///< 0: parts were not timed
};
/// Decides what a group of a table (`bench --paper TABLE`) finds. Lines that did not run are left out; the
/// first one must be there.
PaperVerdict judge_speed(std::string_view table, std::span<const SpeedLine> lines);

}  // namespace keyhole
