/// The names of the formula language, each with its meaning in a few words: one table for the parser, for
/// completion and for the manual. Constant; any thread; host alone.
#pragma once

#include "engine/policy/formula.h"

#include <array>
#include <string_view>

namespace keyhole {

/// Where a quantity is known.
enum class KnownIn : std::uint8_t { both, rows, selections };

struct QuantityName {
    std::string_view name;
    Quantity quantity;
    KnownIn known;
    std::string_view help;
    std::string_view help_in_score{};  ///< where `score` means something else by it
};
inline constexpr std::array kQuantityNames = {
    QuantityName{"s", Quantity::s, KnownIn::both, "the score of the token now, pooled over the query heads",
                 "the head's score before the row, 0 for the row's own token"},
    QuantityName{"row", Quantity::row, KnownIn::both, "the step's row"},
    QuantityName{"t", Quantity::t, KnownIn::both, "its decode step, 0 in the prompt"},
    QuantityName{"age", Quantity::age, KnownIn::both, "steps since the token"},
    QuantityName{"position", Quantity::position, KnownIn::both, "place of the token in the text, from 0"},
    QuantityName{"n", Quantity::n, KnownIn::both, "tokens of the prompt"},
    QuantityName{"count", Quantity::count, KnownIn::both, "stored tokens"},
    QuantityName{"budget", Quantity::budget, KnownIn::both, "the budget in tokens"},
    QuantityName{"slot", Quantity::slot, KnownIn::both, "rank by position among the stored tokens, from 0"},
    QuantityName{"layer", Quantity::layer, KnownIn::both, "the layer of the KV head"},
    QuantityName{"kvhead", Quantity::kvhead, KnownIn::both, "the KV head in its layer"},
    QuantityName{"alpha", Quantity::alpha, KnownIn::both, "the lane's alpha at this head"},
    QuantityName{"tau", Quantity::tau, KnownIn::both, "the lane's tau at this row and head"},
    QuantityName{"gain", Quantity::gain, KnownIn::both, "the lane's gain of the noise"},
    QuantityName{"mix", Quantity::mix, KnownIn::both, "the lane's mix, lambda of R-KV"},
    QuantityName{"window", Quantity::window, KnownIn::both, "the lane's window in rows"},
    QuantityName{"prompt", Quantity::prompt, KnownIn::both, "a condition: the token is of the prompt"},
    QuantityName{"win", Quantity::win, KnownIn::selections,
                 "mean attention of the newest rows, as many as the key window says"},
    QuantityName{"knorm", Quantity::knorm, KnownIn::both, "length of its stored key"},
    QuantityName{"vnorm", Quantity::vnorm, KnownIn::both, "length of its stored value"},
    QuantityName{"wvnorm", Quantity::wvnorm, KnownIn::both, "how far its value reaches into the output"},
    QuantityName{"keydiff", Quantity::keydiff, KnownIn::selections,
                 "cosine of its key and the mean direction of all stored keys"},
    QuantityName{"redundancy", Quantity::redundancy, KnownIn::selections,
                 "how much other keys resemble its key"},
    QuantityName{"lag", Quantity::lag, KnownIn::selections,
                 "rank in its partition by how it stands out against the next one"},
    QuantityName{"caote", Quantity::caote, KnownIn::selections, "change of the head's output if it leaves"},
    QuantityName{"repeat", Quantity::repeat, KnownIn::selections,
                 "most attention while the prompt is repeated"},
    QuantityName{"future", Quantity::future, KnownIn::selections, "attention that comes"},
    QuantityName{"expected", Quantity::expected, KnownIn::selections,
                 "attention to expect from the queries to come"},
    QuantityName{"tri", Quantity::tri, KnownIn::selections,
                 "how the mean query, turned to places ahead, agrees with its key"},
    QuantityName{"u", Quantity::u, KnownIn::selections,
                 "a number between 0 and 1, drawn anew for each row, layer, KV head and token"},
    QuantityName{"p", Quantity::p, KnownIn::rows, "the row's probability; 0 for a hidden token"},
    QuantityName{"logit", Quantity::logit, KnownIn::rows,
                 "q.k in the model's scale, before the temperature; minus infinity for a hidden token"},
    QuantityName{"ptau", Quantity::ptau, KnownIn::rows, "softmax of (logit + gain * noise)/tau"},
    QuantityName{"sinkmass", Quantity::sinkmass, KnownIn::rows,
                 "what a learned sink took of the row; 0 in models that have none"},
    QuantityName{"head", Quantity::head, KnownIn::rows, "the query head"},
};
static_assert(kQuantityNames.size() == std::size_t{kQuantities});

struct FunctionName {
    std::string_view name;
    FormulaCode code;
    int n_arguments;
    std::string_view form, help;
};
inline constexpr std::array kFunctionNames = {
    FunctionName{"abs", FormulaCode::absolute, 1, "abs(x)", "x without its sign"},
    FunctionName{"min", FormulaCode::minimum, 2, "min(a, b)", "the smaller of two"},
    FunctionName{"max", FormulaCode::maximum, 2, "max(a, b)", "the larger of two"},
    FunctionName{"clamp", FormulaCode::clamp, 3, "clamp(x, low, high)", "x, but not beyond low and high"},
    FunctionName{"exp", FormulaCode::exp, 1, "exp(x)", "e to the power of x"},
    FunctionName{"log", FormulaCode::log, 1, "log(x)", "the natural logarithm"},
    FunctionName{"sqrt", FormulaCode::sqrt, 1, "sqrt(x)", "the square root"},
    FunctionName{"smooth", FormulaCode::smooth_average, 1, "smooth(x, avg, 5)",
                 "average or max over neighbours; smooth(x) takes the lane's kernel"},
    FunctionName{"rank", FormulaCode::rank, 1, "rank(x)", "how many tokens x beats; 0 is worst"},
    FunctionName{"mean", FormulaCode::mean, 1, "mean(x)", "the mean over the competing tokens"},
    FunctionName{"std", FormulaCode::deviation, 1, "std(x)", "the deviation over the competing tokens"},
    FunctionName{"sum", FormulaCode::sum, 1, "sum(x)", "the sum over the competing tokens"},
    FunctionName{"largest", FormulaCode::largest, 1, "largest(x)", "the largest of the competing tokens"},
    FunctionName{"softmax", FormulaCode::softmax, 1, "softmax(x)", "shares that sum to 1, by e to the x"},
    FunctionName{"norm", FormulaCode::norm, 1, "norm(x)", "how many deviations above the mean"},
    FunctionName{"first", FormulaCode::first, 2, "first(50%, a, b)",
                 "ranks by a up to half of the budget, what is protected included, and others by b"},
};

/// `in(NAME)` and the words between conditions.
struct ConditionWord {
    std::string_view name, form, help;
};
inline constexpr std::string_view kInSpan = "in";
inline constexpr std::array kConditionWords = {
    ConditionWord{kInSpan, "in(NAME)", "a condition: its position is in a named span"},
    ConditionWord{"and", "a and b", "both conditions hold"},
    ConditionWord{"or", "a or b", "one of the conditions holds"},
    ConditionWord{"not", "not a", "the condition does not hold"},
};

/// Returns whether a formula of this use may name it.
constexpr bool is_known_to(const QuantityName& quantity, FormulaUse use) {
    return quantity.known == KnownIn::both || (quantity.known == KnownIn::rows) == (use == FormulaUse::score);
}
constexpr bool is_known_to(const FunctionName& function, FormulaUse use) {
    return use != FormulaUse::score || !is_over_tokens(function.code);
}
constexpr std::string_view help_of(const QuantityName& quantity, FormulaUse use) {
    return use == FormulaUse::score && !quantity.help_in_score.empty() ? quantity.help_in_score
                                                                       : quantity.help;
}

}  // namespace keyhole
