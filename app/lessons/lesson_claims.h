/// Measures a run for the claims of a lesson: a small, closed vocabulary, so that a file from a stranger can
/// say what must hold and nothing else. Only reads the run; any thread; knows no window.
#pragma once

#include "app/lessons/lesson.h"
#include "engine/run/answer.h"
#include "engine/run/counterfactual.h"
#include "engine/trace/run_history.h"

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct ClaimMeasure {
    enum class Unit { text, share, number, bytes };
    std::string_view name;
    std::string_view words;  ///< what a reader sees; {} stands for the tokens, which else follow as "of ..."
    bool is_text = false;
    Unit unit = Unit::number;
    std::string_view help;  ///< one sentence, with the members that it reads
};
/// Returns null for an unknown name.
const ClaimMeasure* find_claim_measure(std::string_view name);
std::vector<std::string_view> claim_measure_names();

/// The evidence that claims are measured on. lanes: for each lane as the user numbers them, its index into
/// history.lanes(), -1: none.
struct Evidence {
    const RunHistory* history = nullptr;
    std::vector<int> lanes;
    std::span<const LaneAnswer> answers;  ///< in the order of `lanes`; empty: not known yet
    std::vector<std::string> specs;       ///< of the lanes as they are set now; empty: as in the last record
    /// Answers what a lane would say with tokens back; nullopt: not known yet. Throws Error.
    std::function<std::optional<Counterfactual>(const CounterfactualRequest&)> restored;
};

struct Measured {
    double value = std::numeric_limits<double>::quiet_NaN();
    std::string text;  ///< of a text measure
    bool holds = false;
    bool pending = false;  ///< the evidence is not complete yet
    std::string fault;     ///< why it cannot be measured on this run; empty if it can
    bool operator==(const Measured&) const = default;
};

/// Measures a claim after the last row of the run. Never throws for a claim that does not fit the run: see
/// Measured::fault.
Measured measure_claim(const Claim& claim, const Evidence& evidence);

/// Returns the positions of a set that exist, in the lane's text so far; empty: there are none.
std::optional<TokenSpan> span_of(const TokenSet& tokens, const RunHistory& history, int lane);

/// Returns what is measured: "share kept of “4821”, lane 1".
std::string claim_subject(const Claim& claim);
/// Returns what is expected of it: "at most 20 %".
std::string claim_limit(const Claim& claim);
/// Returns "share kept of “4821”, lane 1: at most 20 %".
std::string claim_text(const Claim& claim);
/// Returns "12 %", "3.10", "4821", or why there is no value.
std::string measured_text(const Claim& claim, const Measured& measured);
/// Replaces {1}, {2} ... in a text by what the claims measured.
std::string with_values(std::string_view text, std::span<const Claim> claims,
                        std::span<const Measured> measured);

}  // namespace keyhole
