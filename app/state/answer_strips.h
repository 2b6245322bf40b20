/// How each lane would answer with other values of one of its options, such as the budget: right or wrong;
/// and what `random` and `oracle` answer with the lanes' budgets, the floor and the ceiling.
/// Copies of the lanes process the prompt together, on a thread of their own and only while the run rests;
/// the run does not see them. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/background_job.h"
#include "app/state/job_backend.h"
#include "engine/figure/answers.h"
#include "engine/policy/lane_spec.h"
#include "engine/run/answer.h"
#include "engine/run/run_spec.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct AppState;

/// An option with a strip. values: as in a lane spec, blanks between; the budget's depend on the prompt.
struct StripOption {
    std::string_view key, values;
};
inline constexpr std::array kStripOptions = {
    StripOption{"budget", ""},
    StripOption{"recent", "0% 10% 20% 30% 40% 50% 60% 70% 80% 90% rest"},
    StripOption{"sinks", "0 1 2 4 8 16 32"},
    StripOption{"alpha", "0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 0.95 0.99 1"},
    StripOption{"tau", "0.25 0.5 0.75 1 1.5 2 3 4 8"},
    StripOption{"scope", "head layer shared"},
    StripOption{"kv_dtype", "f32 f16 bf16 q8"},
};

/// One value, and what the lane answers with it.
struct StripCell {
    std::string value;                         ///< as in a lane spec: "64"
    std::string spec;                          ///< the lane's settings with it, without its shadow
    std::shared_ptr<const LaneAnswer> answer;  ///< null: not known yet
    /// right: it has the right answer, or where none is known the answer of lane 0.
    AnswerLine::Mark mark = AnswerLine::Mark::none;
};

struct AnswerStrip {
    std::vector<StripCell> cells;  ///< empty: the option does nothing in this lane
    int now = -1;                  ///< the cell of the lane's own value; -1: it is not among them
    std::string words;             ///< "budget 16 to 394: right from 320"
};

/// What the floor or the ceiling of a budget answers.
struct AnswerBound {
    std::string name;    ///< its spec without the seed: "random:budget=64"
    std::string budget;  ///< "64"
    bool is_ceiling = false;
    std::vector<StripCell> cells;  ///< one a seed
    /// Returns "1 of 3 right", or of the seeds known so far; "" where none is.
    std::string words(bool right_known) const;
    /// Returns a sentence on how far this share is known, with Wilson's interval; "" where no seed is known.
    std::string interval_words() const;
};

/// Returns the floor and the ceiling of the first few budgets among the lanes, without answers. The ceiling
/// reads a full lane's words, which it must know ahead, and is right where it would choose them too.
std::vector<AnswerBound> answer_bounds(std::span<const LaneSpec> lanes);

/// Returns the values of an option that a strip tries, with the lane's own among them in their order: of the
/// budget four for each doubling from 16 tokens on, two where the prompt is long, and last one with which
/// nothing is evicted. Without those that the lane cannot have. Empty: the option does nothing in this lane.
/// n_answer: most tokens of an answer.
std::vector<std::string> strip_values(const LaneSpec& lane, std::string_view key, int n_prompt, int n_answer);

/// Returns the sentence below a strip. right_known: the marks are of the right answer, not of lane 0's.
std::string strip_words(std::string_view key, std::span<const StripCell> cells, bool right_known);

class AnswerStrips {
  public:
    /// Follows the lanes, the option and the run; computes while the run rests, and stops otherwise. Call
    /// once a frame. Returns whether a strip changed.
    bool update(const AppState& app);
    /// Returns a lane's strip; one without cells while there is none.
    const AnswerStrip& of(int lane) const;
    /// Returns the floor and the ceiling of each budget, the floor first; none while they are off.
    const std::vector<AnswerBound>& bounds() const { return bounds_; }
    /// Returns whether nothing is to be computed now.
    bool complete() const { return !may_compute_ || (wanted_.empty() && !job_.running()); }

  private:
    /// What all answers depend on, beside the settings of the lane.
    struct Asked {
        std::string model;
        RunSpec run;  // without lanes and commands
        bool is(const std::string& other_model, const RunSpec& other) const;
    };
    /// What the strips were made of.
    struct MadeOf {
        std::string key;
        bool bounds = false;
        std::uint64_t lanes = 0;    // LaneEditor::version()
        std::uint64_t changes = 0;  // changes_
        int n_prompt = 0;
        std::string right;
        std::vector<int> reference;
        bool operator==(const MadeOf&) const = default;
    };
    struct Batch {
        std::uint64_t asked = 0;  // n_asked_ at its start
        std::vector<std::string> specs;
        std::vector<LaneAnswer> answers;
        std::shared_ptr<Backend> backend;
    };
    std::optional<Asked> asked_;
    std::uint64_t n_asked_ = 0;  // questions so far
    std::uint64_t changes_ = 0;  // of known_
    std::map<std::string, std::shared_ptr<const LaneAnswer>> known_;
    std::shared_ptr<Backend> backend_;  // of the last batch, while more is wanted
    MadeOf made_of_;
    std::vector<AnswerStrip> strips_;
    std::vector<AnswerBound> bounds_;
    std::vector<std::string> wanted_;  // specs in the order in which they are computed
    std::set<std::string> alone_;      // specs of batches that failed
    std::vector<std::string> tried_;   // of the job that runs
    bool is_cancelled_ = false;        // it was told to stop
    bool may_compute_ = false;         // the run rests
    BackgroundJob<Batch> job_;

    bool take_batch();
    bool follow(const AppState& app);
    void answer_cell(StripCell& cell) const;
    void make_bounds(const AppState& app);
    RunSpec next_batch() const;
    void make_strips(const AppState& app);
    void begin_batch(const AppState& app);
};

}  // namespace keyhole
