/// The language of `choose=(...)` and `protect=(...)`, a line that ranks or guards the stored tokens of a
/// unit at a selection, and of `score=(...)`, a line that a row adds to its scores by. parse_formula() makes
/// a table of operations; FormulaRun evaluates it, on the host and on a device, with the same bits. Any
/// thread. Knows neither caches nor policies.
///
/// Values are float. All tokens of a unit are computed together, in text order: an operation reads and writes
/// lists of one number a token. Functions over tokens see the competing ones alone. Their sums have one
/// order: 32 sums, of every 32nd token each, added in pairs.
#pragma once

#include "engine/base/host_device.h"
#include "engine/policy/formula_maths.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

/// What a formula may name. Those from `age` on differ from token to token.
enum class Quantity : std::uint8_t {
    row,     ///< the row after which is selected
    t,       ///< its decode step, 0 in the prompt
    n,       ///< tokens of the prompt
    count,   ///< stored tokens of the unit
    budget,  ///< effective
    layer,   ///< of the unit's first KV head
    kvhead,  ///< its index in the layer
    alpha,
    tau,
    gain,
    mix,
    window,
    head,      ///< the query head's index in the layer; of a row
    sinkmass,  ///< mass of a learned sink; of a row
    age,       ///< row - position
    position,
    slot,        ///< rank among the stored tokens by position, from 0
    prompt,      ///< truth: position < n
    s,           ///< score: pooled at a selection, the head's own before a row
    p,           ///< probability; of a row, as the next two
    logit,       ///< before the temperature
    ptau,        ///< softmax of (logit + gain noise) / tau
    knorm,       ///< length of the stored key
    vnorm,       ///< length of the stored value
    wvnorm,      ///< sum of |W_o v| over the output's channels
    keydiff,     ///< cosine of the key and the mean direction of all stored keys
    redundancy,  ///< share of the likeness of all stored keys to this one (R-KV)
    win,         ///< mean probability over the last `window` rows, pooled
    lag,         ///< rank in its partition by how it stands out against the next one (LagKV)
    caote,       ///< error of the head's output if the token leaves (CAOTE)
    repeat,      ///< most attention while the prompt is repeated (KVzip)
    expected,    ///< attention to expect of the queries to come (Expected Attention)
    tri,         ///< logits to expect of the mean query, near and far ahead (TriAttention)
    future,      ///< attention that comes: FutureTable
    u,           ///< a number of (0, 1), drawn anew for each row
    kCount
};
inline constexpr int kQuantities = static_cast<int>(Quantity::kCount);
KH_FN bool differs_by_token(Quantity q) {
    return q >= Quantity::age;
}

enum class FormulaCode : std::uint8_t {
    constant,
    quantity,
    add,
    subtract,
    multiply,
    divide,
    power,
    negate,
    less,
    less_equal,
    greater,
    greater_equal,
    equal,
    not_equal,
    both,
    either,
    negation,
    select,
    absolute,
    minimum,
    maximum,
    clamp,
    exp,
    log,
    sqrt,
    // Over the competing tokens.
    smooth_average,
    smooth_maximum,
    rank,
    mean,
    deviation,
    sum,
    largest,
    softmax,
    norm,
    first
};
KH_FN bool is_over_tokens(FormulaCode code) {
    return code >= FormulaCode::smooth_average;
}

/// An operation. Its operands are the lists from `level` on, and its result takes the place of the first.
struct FormulaOp {
    FormulaCode code;
    Quantity quantity;  ///< of FormulaCode::quantity
    std::uint8_t level;
    std::uint8_t width;  ///< of a smoothing, odd
    float value;         ///< a constant; the share of `first`
};

/// Operations between two barriers: [first, last) of those that need none, or a part of one over tokens.
struct FormulaStep {
    std::uint8_t first, last, part, unused;
};

struct FormulaTable {
    static constexpr int kMostOps = 64, kMostSteps = 192, kParts = 3;
    std::int32_t n_ops = 0, n_steps = 0;
    std::int32_t n_lists = 0;  ///< lists that it needs, one for its own use included
    std::int32_t unused = 0;
    std::uint64_t uses = 0;  ///< bit q: it names quantity q
    FormulaOp ops[kMostOps] = {};
    FormulaStep steps[kMostSteps] = {};

    KH_FN bool names(Quantity q) const { return (uses >> static_cast<int>(q) & 1u) != 0; }
};

/// A formula that was read, with its text.
struct Formula {
    std::string text;
    int kernel = 0;  ///< of `smooth` where it names none: the width of an average, minus that of a maximum
    FormulaTable table;
    std::optional<FormulaTable> unsmoothed{};  ///< without its smoothing, where it has any: orders equal ones
    std::string spans{};                       ///< those that it names, or whose rows it keeps apart
    bool own_rows = false;                     ///< see FormulaSetting
};

/// A formula or none. Equal texts with equal settings are equal formulas.
struct FormulaRef {
    std::shared_ptr<const Formula> formula{};
    explicit operator bool() const { return formula != nullptr; }
    const FormulaTable* operator->() const { return &formula->table; }
    const FormulaTable& operator*() const { return formula->table; }
    /// Returns its operations; null: none.
    const FormulaTable* table() const { return formula != nullptr ? &formula->table : nullptr; }
    /// Returns the table that orders what this one makes equal; null: none.
    const FormulaTable* unsmoothed() const {
        return formula != nullptr && formula->unsmoothed ? &*formula->unsmoothed : nullptr;
    }
    bool operator==(const FormulaRef& other) const {
        return formula == other.formula ||
               (formula != nullptr && other.formula != nullptr && formula->text == other.formula->text &&
                formula->kernel == other.formula->kernel && formula->spans == other.formula->spans &&
                formula->own_rows == other.formula->own_rows);
    }
};

/// What the value of a formula is for.
enum class FormulaUse {
    choose,   ///< a number: the larger stays
    protect,  ///< a truth: where it holds, the token stays
    score,    ///< a number: s after a row, of a query head
};

/// A fault of a formula and the place of its first character; empty: none.
struct FormulaFault {
    std::size_t at = 0;
    std::string what{};
};

inline constexpr std::size_t kLongestFormula = 256;

/// What a lane's other options say of its formulas.
struct FormulaSetting {
    static constexpr std::string_view kAnySpans = "*";  ///< as spans: in(NAME) names any
    int kernel = 0;                                     ///< as Formula has it
    std::string_view spans = "none";                    ///< as spans_of() reads them
    /// Of `score`: a row changes only the tokens of its own span; those after the last one belong to it.
    bool own_rows = false;
};

/// Reads a formula. A fault in it sets *fault and gives none.
FormulaRef parse_formula(std::string_view text, FormulaUse use, FormulaFault* fault,
                         const FormulaSetting& setting = {});
/// Returns the formula of a value of `choose`, `protect` or `score`, which may be a word; none for the values
/// that change nothing (`s`, `none`, `attention`). A fault sets *fault.
FormulaRef choose_formula(std::string_view value, FormulaFault* fault, const FormulaSetting& setting = {});
FormulaRef protect_formula(std::string_view value, FormulaFault* fault, const FormulaSetting& setting = {});
FormulaRef score_formula(std::string_view value, FormulaFault* fault, const FormulaSetting& setting = {});
/// Returns whether a score formula names what only rows know; one that does not is a choice.
bool is_of_rows(const FormulaTable& score);

/// A formula as it is evaluated for one unit: by one thread on the host, by the threads of a block on a
/// device. Runs step(0) to step(n_steps - 1) with a barrier between two; then list 0 holds the values. Env:
/// float quantity(Quantity, int i), by index in text order, and int budget().
template <class Env>
struct FormulaRun {
    static constexpr int kSums = 32;
    /// Shared by the threads; contents undefined at the start.
    struct Sums {
        float value[kSums], second[kSums];
        std::int32_t count[kSums];
    };
    const Env& env;
    const FormulaTable& table;
    float* lists;  ///< [n_lists, stride]
    std::int32_t stride;
    const std::uint8_t* competes;  ///< [n] not 0: the token competes, with equal ones as its neighbours
    int n, thread, n_threads;
    Sums& sums;

    KH_FN float* list(int level) const { return lists + static_cast<std::int64_t>(level) * stride; }

    KH_FN void step(int at) const {
        const FormulaStep& step = table.steps[at];
        if (is_over_tokens(table.ops[step.first].code)) return over_tokens(table.ops[step.first], step.part);
        for (int o = step.first; o < step.last; ++o) by_token(table.ops[o]);
    }

    /// Computes an operation that looks at one token at a time.
    KH_FN void by_token(const FormulaOp& op) const {
        using Code = FormulaCode;
        float* x = list(op.level);
        const float *y = x + stride, *z = y + stride;
        switch (op.code) {
            case Code::constant:
                return for_own([&](int i) { x[i] = op.value; });
            case Code::quantity:
                return for_own([&](int i) { x[i] = env.quantity(op.quantity, i); });
            case Code::add:
                return binary(x, [](float a, float b) { return keyhole::add(a, b); });
            case Code::subtract:
                return binary(x, [](float a, float b) { return keyhole::add(a, -b); });
            case Code::multiply:
                return binary(x, [](float a, float b) { return mul(a, b); });
            case Code::divide:
                return binary(x, [](float a, float b) { return a / b; });
            case Code::power:
                return binary(x, [](float a, float b) { return formula_power(a, b); });
            case Code::negate:
                return unary(x, [](float a) { return -a; });
            case Code::less:
                return compare(x, [](float a, float b) { return a < b; });
            case Code::less_equal:
                return compare(x, [](float a, float b) { return a <= b; });
            case Code::greater:
                return compare(x, [](float a, float b) { return a > b; });
            case Code::greater_equal:
                return compare(x, [](float a, float b) { return a >= b; });
            case Code::equal:
                return compare(x, [](float a, float b) { return a == b; });
            case Code::not_equal:
                return compare(x, [](float a, float b) { return a != b; });
            case Code::both:
                return compare(x, [](float a, float b) { return a != 0 && b != 0; });
            case Code::either:
                return compare(x, [](float a, float b) { return a != 0 || b != 0; });
            case Code::negation:
                return unary(x, [](float a) { return a == 0 ? 1.0f : 0.0f; });
            case Code::select:
                return for_own([&](int i) { x[i] = x[i] != 0 ? y[i] : z[i]; });
            case Code::absolute:
                return unary(x, [](float a) { return fabsf(a); });
            case Code::minimum:
                return binary(x, [](float a, float b) { return formula_min(a, b); });
            case Code::maximum:
                return binary(x, [](float a, float b) { return formula_max(a, b); });
            case Code::clamp:
                return for_own([&](int i) { x[i] = formula_min(formula_max(x[i], y[i]), z[i]); });
            case Code::exp:
                return unary(x, [](float a) { return formula_exp(a); });
            case Code::log:
                return unary(x, [](float a) { return formula_log(a); });
            case Code::sqrt:
                return unary(x, [](float a) { return sqrtf(a); });
            default:
                return;
        }
    }

  private:
    /// Calls visit(i) for the tokens of this thread.
    template <class Visit>
    KH_FN void for_own(Visit visit) const {
        for (int i = thread; i < n; i += n_threads) visit(i);
    }
    template <class Of>
    KH_FN void unary(float* x, Of of) const {
        for_own([&](int i) { x[i] = of(x[i]); });
    }
    template <class Of>
    KH_FN void binary(float* x, Of of) const {
        const float* y = x + stride;
        for_own([&](int i) { x[i] = of(x[i], y[i]); });
    }
    template <class Of>
    KH_FN void compare(float* x, Of of) const {
        binary(x, [&](float a, float b) { return of(a, b) ? 1.0f : 0.0f; });
    }

    // --- over tokens ---------------------------------------------------------------------------------------

    /// Folds of(i) over the competing tokens of each of the 32 sums that are this thread's.
    template <class Of, class Fold>
    KH_FN void fold_into(float (&to)[kSums], float start, Of of, Fold fold) const {
        for (int j = thread; j < kSums; j += n_threads) {
            float value = start;
            for (int i = j; i < n; i += kSums)
                if (competes[i] != 0) value = fold(value, of(i));
            to[j] = value;
        }
    }
    KH_FN void count_competing() const {
        for (int j = thread; j < kSums; j += n_threads) {
            sums.count[j] = 0;
            for (int i = j; i < n; i += kSums) sums.count[j] += competes[i] != 0 ? 1 : 0;
        }
    }
    template <class Of>
    KH_FN void add_into(float (&to)[kSums], Of of) const {
        fold_into(to, 0.0f, of, [](float a, float b) { return keyhole::add(a, b); });
    }
    KH_FN static float total(const float (&of)[kSums]) { return sum_in_pairs(of); }
    KH_FN float largest(const float (&of)[kSums]) const {
        float most = -INFINITY;
        for (const float x : of) most = formula_max(most, x);
        return most;
    }
    KH_FN float n_competing() const {
        int count = 0;
        for (const std::int32_t c : sums.count) count += c;
        return static_cast<float>(count);
    }
    KH_FN float average(const float (&of)[kSums]) const { return total(of) / n_competing(); }

    KH_FN void over_tokens(const FormulaOp& op, int part) const {
        using Code = FormulaCode;
        float* x = list(op.level);
        float* spare = list(table.n_lists - 1);
        const auto own = [&](int i) { return x[i]; };
        const auto maximum = [](float a, float b) { return formula_max(a, b); };
        switch (op.code) {
            case Code::sum:
            case Code::mean:
                if (part == 0) {
                    count_competing();
                    add_into(sums.value, own);
                } else if (part == 2) {
                    const float value = op.code == Code::sum ? total(sums.value) : average(sums.value);
                    for_own([&](int i) { x[i] = value; });
                }
                return;
            case Code::deviation:
            case Code::norm:
                if (part == 0) {
                    count_competing();
                    add_into(sums.value, own);
                } else if (part == 1) {
                    const float mean = average(sums.value);
                    add_into(sums.second, [&](int i) {
                        const float away = keyhole::add(x[i], -mean);
                        return mul(away, away);
                    });
                } else {
                    spread(op.code, x);
                }
                return;
            case Code::largest:
                if (part == 0) fold_into(sums.value, -INFINITY, own, maximum);
                if (part == 2) {
                    const float most = largest(sums.value);
                    for_own([&](int i) { x[i] = most; });
                }
                return;
            case Code::softmax:
                if (part == 0) {
                    fold_into(sums.value, -INFINITY, own, maximum);
                } else if (part == 1) {
                    const float most = largest(sums.value);
                    add_into(sums.second, [&](int i) { return formula_exp(keyhole::add(x[i], -most)); });
                } else {
                    const float most = largest(sums.value), all = total(sums.second);
                    for_own([&](int i) {
                        x[i] = competes[i] != 0 ? formula_exp(keyhole::add(x[i], -most)) / all : 0.0f;
                    });
                }
                return;
            case Code::smooth_average:
            case Code::smooth_maximum:
                if (part == 0) for_own([&](int i) { spare[i] = smoothed(op, x, i); });
                if (part == 1) for_own([&](int i) { x[i] = spare[i]; });
                return;
            case Code::rank:
                if (part == 0) for_own([&](int i) { spare[i] = static_cast<float>(n_worse(x, i)); });
                if (part == 1) for_own([&](int i) { x[i] = spare[i]; });
                return;
            case Code::first: {
                const int n_best = static_cast<int>(mul(op.value, static_cast<float>(env.budget())));
                if (part == 0) for_own([&](int i) { spare[i] = n_before(x, i) < n_best ? 1.0f : 0.0f; });
                if (part == 1) {
                    const float* other = x + stride;
                    for_own([&](int i) { x[i] = spare[i] != 0 && competes[i] != 0 ? INFINITY : other[i]; });
                }
                return;
            }
            default:
                return;
        }
    }

    KH_FN void spread(FormulaCode code, float* x) const {
        const float mean = average(sums.value), deviation = sqrtf(average(sums.second));
        for_own([&](int i) {
            if (code == FormulaCode::deviation)
                x[i] = deviation;
            else
                x[i] = deviation > 0 ? keyhole::add(x[i], -mean) / deviation : 0.0f;
        });
    }

    /// The average or maximum over the competing neighbours of token i in its span, `width` places with its
    /// own. Outside, the average counts 0 and the maximum ignores.
    KH_FN float smoothed(const FormulaOp& op, const float* x, int i) const {
        if (competes[i] == 0) return 0;
        int left = op.width / 2, right = left, from = i;
        for (int j = i - 1; j >= 0 && left > 0; --j)
            if (competes[j] == competes[i]) {
                from = j;
                --left;
            }
        const bool is_max = op.code == FormulaCode::smooth_maximum;
        float value = is_max ? -INFINITY : 0.0f;
        for (int j = from; j < n; ++j) {
            if (competes[j] != competes[i]) continue;
            if (j > i && right-- == 0) break;
            value = is_max ? formula_max(value, x[j]) : keyhole::add(value, x[j]);
        }
        return is_max ? value : value / static_cast<float>(op.width);
    }

    /// Counts the competing tokens that rank below token i: NaN lowest, of equal ones the older.
    KH_FN int n_worse(const float* x, int i) const {
        int worse = 0;
        const float own = lowest_if_nan(x[i]);
        for (int j = 0; j < n; ++j) {
            const float other = lowest_if_nan(x[j]);
            worse += competes[j] != 0 && (other < own || (other == own && j < i)) ? 1 : 0;
        }
        return worse;
    }
    /// Counts the tokens that take a part of the budget before token i: all that never leave, and those that
    /// rank above it.
    KH_FN int n_before(const float* x, int i) const {
        int before = 0;
        const float own = lowest_if_nan(x[i]);
        for (int j = 0; j < n; ++j) {
            const float other = lowest_if_nan(x[j]);
            before += competes[j] == 0 || other > own || (other == own && j > i) ? 1 : 0;
        }
        return before;
    }
};

}  // namespace keyhole
