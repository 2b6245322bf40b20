/// The options of a lane, one row each. The parser and printer of lane specs, validate(), help, the policy
/// card and no_effect_reason() loop over this table. Constant; any thread; knows no widget.
#pragma once

#include "engine/policy/lane_spec.h"

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace keyhole {

/// The largest number of tokens or rows in a setting: no text is so long, and the sum of two fits an int. A
/// huge number does not mean "no limit" either.
inline constexpr int kMostTokens = 1'000'000'000;
static_assert(kMostTokens < ResolvedPolicy::kUnlimited / 2);

/// The most rows that `win` is the mean of: a lane keeps as many floats a token and query head.
inline constexpr int kMostWindow = 512;

/// A word that an option can have as its value.
struct OptionWord {
    std::string_view text;
    int value = 0;             ///< of the enum or bool
    std::string_view label{};  ///< on the policy card; empty: the text
};

/// A member that has one of a few words. Owner: PolicyParams or KvSharing.
template <class Owner>
struct WordsOf {
    std::span<const OptionWord> words;
    int (*get)(const Owner&) = nullptr;
    void (*set)(Owner&, int) = nullptr;
    std::string_view beside{};  ///< text beside a check box, on the policy card
    bool is_switch = false;
};

/// The member that an option sets. Its type says how a value is written, checked and edited. monostate: the
/// preset, which is no key of a spec.
using OptionMember =
    std::variant<std::monostate, int PolicyParams::*, double PolicyParams::*, std::uint64_t PolicyParams::*,
                 Amount PolicyParams::*, TauSchedule PolicyParams::*, FormulaText PolicyParams::*,
                 HeadTable PolicyParams::*, CalibrationRef PolicyParams::*, WordsOf<PolicyParams>,
                 WordsOf<KvSharing>, KvSharing LaneSpec::*>;

/// The numbers that an option can have, both ends included.
struct OptionBounds {
    double low, high;
};

/// How a number is dragged on the policy card. Narrower than the bounds: the values that are of use.
struct OptionDrag {
    float speed = 0.1f;  ///< change for each pixel
    float low = 0, high = 0;
    const char* format = "%d";  ///< for printf, of an int or a double
    /// A value with words of its own.
    double special = std::numeric_limits<double>::quiet_NaN();
    const char* special_format = "";

    const char* format_of(double value) const { return value == special ? special_format : format; }
};

struct LaneOption {
    /// What the option acts on, and so when it has no effect.
    enum class Acts {
        always,    ///< also on a full cache
        evicting,  ///< not on preset full
        choice,    ///< on which tokens leave: not where the budget is all tokens
        scores,    ///< through the scores alone: not where the newest tokens fill the budget
    };

    std::string_view name;     ///< `preset`, or a key of the lane spec
    std::string_view label{};  ///< on the policy card; empty: the name
    std::string_view word{};   ///< what papers call it, where the name is another word
    OptionMember member{};
    /// Examples as a spec writes them, two blanks apart. Empty: the words; see option_values().
    std::string_view values{};
    std::string_view help;   ///< what it does, one or two sentences
    std::string_view paper;  ///< where it comes from: paper and section
    std::optional<OptionBounds> bounds{};
    OptionDrag drag{};
    Acts acts = Acts::choice;
    int card_row = 0;        ///< of the policy card, from 1; options in one row share it; 0: not in a row
    bool of_preset = false;  ///< a change of the preset sets it
    bool of_rows = false;    ///< acts through what rows add to the scores: not where no score is read
    std::optional<Override::Field> by_head{};  ///< it may differ between layers and heads

    /// Returns a fault of the value beside its bounds; empty: none.
    std::string (*fault)(const PolicyParams&) = nullptr;
    /// Returns why it has no effect, for a reason of its own; empty: it has one.
    std::string_view (*idle)(const PolicyParams&, const HeadGrid&) = nullptr;
};

/// Returns `preset` first, then every key in the order of the lane spec.
std::span<const LaneOption> lane_options();
/// Returns the keys of a lane spec.
std::span<const LaneOption> lane_keys();
/// Returns an option, which must exist (asserted).
const LaneOption& lane_option(std::string_view name);
/// Returns what a formula of the option is for; nullopt: it is no formula.
std::optional<FormulaUse> use_of(const LaneOption& option);
/// Reads a value of an option of type FormulaText and returns its formula, if it is one; a fault sets *fault.
/// setting: formula_setting() of the lane.
FormulaRef formula_of(const LaneOption& option, const FormulaText& value, const FormulaSetting& setting,
                      FormulaFault* fault);

/// Returns the option of a field that may differ between heads.
const LaneOption& lane_option(Override::Field field);

/// Returns the names of all such options.
std::vector<std::string_view> override_names();

/// Returns the words that are its values; empty: its values are no words.
std::span<const OptionWord> option_words(const LaneOption& option);
/// Returns examples of values, or all of them, two blanks apart.
std::string option_values(const LaneOption& option);

/// Copies the option's value. Options of the sharing are none of the policy and stay.
void copy_option(const LaneOption& option, const PolicyParams& from, PolicyParams& to);

/// Sets the option's value to that of an override.
void set_override(const Override& o, PolicyParams& to);

/// Appends the faults of the option's value, one sentence each.
void add_faults(const LaneOption& option, const PolicyParams& params, std::vector<std::string>& faults);

}  // namespace keyhole
