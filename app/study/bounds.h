/// Whether a lane of a table is surely above its floor, see engine/eval/bound_lanes.h. Pure functions, for
/// any thread; knows no backend.
#pragma once

#include "engine/eval/bound_lanes.h"
#include "engine/eval/evaluate.h"
#include "engine/policy/lane_spec.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// How far a lane is above the floor of its budget, question by question.
struct AboveFloor {
    std::size_t lane = 0;
    Estimate gain;  ///< share of right answers, or nats per question less than the floor's
    double p = 1;   ///< of sign flips, corrected for all lanes of the table
    bool surely_above = false, surely_below = false;
    std::optional<int> needed = {};  ///< samples that would decide it; nullopt: it is, or none would
};

/// A floor: the lanes `random` of one budget, taken together.
struct Floor {
    std::string spec;                ///< without the seed
    std::vector<std::size_t> seeds;  ///< its lanes
    Estimate
        value;  ///< share of right answers, or nats per token; over questions, each the mean of the seeds
    std::vector<AboveFloor> lanes;
};

/// Compares the first n_own lanes with the floors among the others. outcomes: [lane][question].
std::vector<Floor> compare_with_floor(const QuestionSet& set, std::span<const LaneSpec> lanes,
                                      std::size_t n_own, std::span<const std::vector<Outcome>> outcomes);

/// Returns a line that says so where lanes with a budget protect different tokens, which alone may decide a
/// comparison; else nothing. n_own: the lanes before the bounds.
std::string protection_text(std::span<const std::string> labels, std::span<const LaneSpec> lanes,
                            std::size_t n_own);

/// Returns lines below a table: each floor with its interval, and a verdict for each lane.
std::string floor_text(const QuestionSet& set, std::span<const std::string> labels,
                       std::span<const Floor> floors);
nlohmann::json floor_json(const QuestionSet& set, std::span<const LaneSpec> lanes,
                          std::span<const Floor> floors);

/// Answers to several sets of questions, one behind the other: a task of a suite or a cell of a map has too
/// few questions for a verdict of its own.
class JoinedAnswers {
  public:
    JoinedAnswers();
    /// outcomes: [lane][question] of the set, with the same lanes each time.
    void add(const QuestionSet& set, std::span<const std::vector<Outcome>> outcomes);
    /// Compares the first n_own lanes with the floors among the others.
    std::vector<Floor> floors(std::span<const LaneSpec> lanes, std::size_t n_own) const;
    /// Returns the lines of floor_text() below one that says what is joined; empty where there is no floor.
    std::string text(std::string_view what, std::span<const std::string> labels,
                     std::span<const Floor> floors) const;
    nlohmann::json json(std::span<const LaneSpec> lanes, std::span<const Floor> floors) const;

  private:
    QuestionSet set_;
    std::vector<std::vector<Outcome>> outcomes_;
};

}  // namespace keyhole
