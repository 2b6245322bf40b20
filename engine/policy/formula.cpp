#include "engine/policy/formula.h"

#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/base/utf8.h"
#include "engine/policy/formula_names.h"
#include "engine/policy/spans.h"
#include "engine/policy/spec_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

namespace keyhole {
namespace {

using Code = FormulaCode;

/// A list on the way: what the operations so far leave at a level.
struct Operand {
    bool is_truth = false;
    std::optional<float> constant{};
};

class Parser {
  public:
    /// smooths: false leaves smoothing out.
    Parser(std::string_view text, FormulaUse use, const FormulaSetting& setting, bool smooths,
           FormulaFault& fault)
        : text_(text),
          use_(use),
          kernel_(setting.kernel),
          own_rows_(setting.own_rows),
          any_span_(setting.spans == FormulaSetting::kAnySpans),
          smooths_(smooths),
          fault_(fault) {
        if (!any_span_) spans_ = spans_of(setting.spans, nullptr);
    }

    std::optional<FormulaTable> parse() {
        const auto result = own_rows_ ? of_own_rows() : ternary();
        skip_blanks();
        if (result && at_ < text_.size()) fail(at_, fmt::format("'{}' is not expected here", here()));
        if (!fault_.what.empty() || !result) return std::nullopt;
        const bool wants_truth = use_ == FormulaUse::protect;
        if (result->is_truth != wants_truth) {
            fail(0, wants_truth ? "protect needs a truth value, such as position < 4"
                                : fmt::format("{} needs a number, and this is a truth value",
                                              use_ == FormulaUse::score ? "score" : "choose"));
            return std::nullopt;
        }
        return table();
    }
    bool has_smoothing() const { return has_smoothing_; }
    bool names_span() const { return names_span_; }

  private:
    using Result = std::optional<Operand>;

    Result fail(std::size_t at, std::string what) {
        if (fault_.what.empty()) fault_ = {at, std::move(what)};
        return std::nullopt;
    }

    // --- text ----------------------------------------------------------------------------------------------

    void skip_blanks() {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    }
    std::string here() const { return printable_text(first_character(text_.substr(at_))); }
    bool take(std::string_view sign) {
        skip_blanks();
        if (!text_.substr(at_).starts_with(sign)) return false;
        at_ += sign.size();
        return true;
    }
    static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
    static bool is_digit(char c) { return c >= '0' && c <= '9'; }
    std::string_view next_word() {
        skip_blanks();
        std::size_t end = at_;
        while (end < text_.size() && (is_letter(text_[end]) || (end > at_ && is_digit(text_[end])))) ++end;
        return text_.substr(at_, end - at_);
    }
    bool take_word(std::string_view word) {
        if (next_word() != word) return false;
        at_ += word.size();
        return true;
    }

    // --- operations ----------------------------------------------------------------------------------------

    Result emit(Code code, int level, Operand result, float value = 0, Quantity quantity = Quantity::row,
                int width = 0) {
        if (ops_.size() >= std::size_t{FormulaTable::kMostOps})
            return fail(at_, fmt::format("a formula has at most {} operations", FormulaTable::kMostOps));
        ops_.push_back(
            {code, quantity, static_cast<std::uint8_t>(level), static_cast<std::uint8_t>(width), value});
        level_ = level + 1;
        deepest_ = std::max(deepest_, level_);
        return result;
    }
    Result emit_constant(float value) { return emit(Code::constant, level_, {false, value}, value); }
    /// Applies an operation to the operands from `level` on. Constants fold.
    Result apply(Code code, int level, std::initializer_list<Operand> operands, bool gives_truth) {
        const auto is_constant = [](const Operand& o) { return o.constant.has_value(); };
        if (is_over_tokens(code) || !std::all_of(operands.begin(), operands.end(), is_constant))
            return emit(code, level, {gives_truth, std::nullopt});
        // Each constant was one operation, the last ones.
        std::array<float, 4> lists{};
        std::size_t n = 0;
        for (const Operand& o : operands) lists[n++] = *o.constant;
        ops_.resize(ops_.size() - operands.size());
        const float value = value_of(code, lists);
        if (!emit(Code::constant, level, {}, value)) return std::nullopt;
        return Operand{gives_truth, value};
    }
    static float value_of(Code code, std::array<float, 4>& lists) {
        struct NoEnv {
            float quantity(Quantity, int) const { return 0; }
            int budget() const { return 0; }
        } env;
        FormulaTable one;
        one.ops[0] = {code, Quantity::row, 0, 0, 0};
        one.steps[0] = {0, 1, 0, 0};
        const std::uint8_t competes = 1;
        FormulaRun<NoEnv>::Sums sums;
        FormulaRun<NoEnv>{env, one, lists.data(), 1, &competes, 1, 0, 1, sums}.step(0);
        return lists[0];
    }

    // --- spans ---------------------------------------------------------------------------------------------

    Result emit_quantity(Quantity quantity) { return emit(Code::quantity, level_, {}, 0, quantity); }
    /// Compares a quantity with a constant.
    Result compare(Quantity quantity, Code code, int with) {
        const int level = level_;
        if (!emit_quantity(quantity) || !emit_constant(static_cast<float>(with))) return std::nullopt;
        return apply(code, level, {Operand{}, Operand{false, static_cast<float>(with)}}, true);
    }
    /// Reads the rest of `in(NAME)`: first <= position <= last.
    Result inside_span() {
        take("(");
        skip_blanks();
        const std::size_t at = at_;
        const std::string_view name = next_word();
        at_ += name.size();
        if (!take(")")) return fail(at_, "in takes the name of a span: in(rules)");
        const int level = level_;
        NamedSpan span{std::string(name), 0, NamedSpan::kOpen};
        if (!any_span_) {
            const auto found = std::find_if(spans_.named.begin(), spans_.named.end(),
                                            [&](const NamedSpan& known) { return known.name == name; });
            if (found == spans_.named.end()) return fail(at, no_span(name));
            span = *found;
        }
        names_span_ = true;
        const Result after = compare(Quantity::position, Code::greater_equal, span.first);
        if (!after || span.last == NamedSpan::kOpen) return after;
        const Result before = compare(Quantity::position, Code::less_equal, span.last);
        return before ? apply(Code::both, level, {*after, *before}, true) : before;
    }
    std::string no_span(std::string_view name) const {
        if (spans_.named.empty())
            return fmt::format("no span is named: spans=({}@0..31) names one", name.empty() ? "rules" : name);
        std::vector<std::string_view> names;
        for (const NamedSpan& known : spans_.named) names.push_back(known.name);
        return fmt::format("unknown span '{}'{} ({})", name, spec_text::near_hint(name, names),
                           fmt::join(names, " "));
    }
    /// Reads the formula F and makes of it: position >= (where the row's span begins) ? F : s. No token
    /// stands behind the row, so these are the tokens of its span.
    Result of_own_rows() {
        const int level = level_;
        if (!emit_quantity(Quantity::position) || !emit_beginning(spans_.named.size())) return std::nullopt;
        const Result is_own = apply(Code::greater_equal, level, {Operand{}, Operand{}}, true);
        const Result own = is_own ? ternary() : is_own;
        if (!own) return own;
        const Result other = emit_quantity(Quantity::s);
        return other ? apply(Code::select, level, {*is_own, *own, *other}, own->is_truth) : other;
    }
    /// Where the row's span begins, of the first n ones.
    Result emit_beginning(std::size_t n) {
        const auto first = [&](std::size_t i) { return i < n ? spans_.named[i].first : 0; };
        if (n <= 1) return emit_constant(static_cast<float>(first(0)));
        const int level = level_;
        const Result is_last = compare(Quantity::row, Code::greater_equal, first(n - 1));
        const Result last = is_last ? emit_constant(static_cast<float>(first(n - 1))) : is_last;
        const Result before = last ? emit_beginning(n - 1) : last;
        return before ? apply(Code::select, level, {*is_last, *last, *before}, false) : before;
    }

    bool is_number(const Operand& o, std::size_t at) {
        if (o.is_truth) fail(at, "a number is needed here, and this is a truth value");
        return !o.is_truth;
    }
    bool is_truth(const Operand& o, std::size_t at) {
        if (!o.is_truth) fail(at, "a truth value is needed here, such as age < 32, and this is a number");
        return o.is_truth;
    }

    // --- grammar, from the weakest operator to the strongest -----------------------------------------------

    Result ternary() {
        if (++depth_ > kDeepest) return fail(at_, "the parentheses are nested too deeply");
        const Result result = ternary_inside();
        --depth_;
        return result;
    }
    Result ternary_inside() {
        skip_blanks();
        const std::size_t begin = at_;
        const int level = level_;
        const Result condition = disjunction();
        if (!condition || !take("?")) return condition;
        if (!is_truth(*condition, begin)) return std::nullopt;
        const std::size_t then = at_;
        const Result yes = ternary();
        if (!yes) return std::nullopt;
        if (!take(":")) return fail(at_, "':' is expected, as in a ? b : c");
        const Result no = ternary();
        if (!no) return std::nullopt;
        if (yes->is_truth != no->is_truth) return fail(then, "both sides of ':' must be of one kind");
        return apply(Code::select, level, {*condition, *yes, *no}, yes->is_truth);
    }
    Result disjunction() {
        return of_truths("or", Code::either,
                         [this] { return of_truths("and", Code::both, [this] { return negated(); }); });
    }
    template <class Inner>
    Result of_truths(std::string_view word, Code code, Inner inner) {
        skip_blanks();
        std::size_t begin = at_;
        const int level = level_;
        Result left = inner();
        while (left && take_word(word)) {
            if (!is_truth(*left, begin)) return std::nullopt;
            skip_blanks();
            begin = at_;
            const Result right = inner();
            if (!right || !is_truth(*right, begin)) return std::nullopt;
            left = apply(code, level, {*left, *right}, true);
        }
        return left;
    }
    Result negated() {
        if (!take_word("not")) return comparison();
        skip_blanks();
        const std::size_t begin = at_;
        const int level = level_;
        const Result of = negated();
        if (!of || !is_truth(*of, begin)) return std::nullopt;
        return apply(Code::negation, level, {*of}, true);
    }
    Result comparison() {
        skip_blanks();
        const std::size_t begin = at_;
        const int level = level_;
        const Result left = of_numbers();
        if (!left) return left;
        constexpr std::array<std::pair<std::string_view, Code>, 6> kSigns = {{{"<=", Code::less_equal},
                                                                              {">=", Code::greater_equal},
                                                                              {"==", Code::equal},
                                                                              {"!=", Code::not_equal},
                                                                              {"<", Code::less},
                                                                              {">", Code::greater}}};
        for (const auto& [sign, code] : kSigns) {
            if (!take(sign)) continue;
            skip_blanks();
            const std::size_t second = at_;
            if (!is_number(*left, begin)) return std::nullopt;
            const Result right = of_numbers();
            if (!right || !is_number(*right, second)) return std::nullopt;
            return apply(code, level, {*left, *right}, true);
        }
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == '=') return fail(at_, "'=' is no comparison: write ==");
        return left;
    }
    using Signs = std::initializer_list<std::pair<char, Code>>;
    template <class Inner>
    Result chain(Signs signs, Inner inner) {
        skip_blanks();
        const std::size_t begin = at_;
        const int level = level_;
        Result left = inner();
        while (left) {
            skip_blanks();
            const auto* const sign = std::find_if(signs.begin(), signs.end(), [&](const auto& known) {
                return at_ < text_.size() && text_[at_] == known.first;
            });
            if (sign == signs.end()) return left;
            ++at_;
            skip_blanks();
            const std::size_t second = at_;
            const Result right = inner();
            if (!right || !is_number(*left, begin) || !is_number(*right, second)) return std::nullopt;
            left = apply(sign->second, level, {*left, *right}, false);
        }
        return left;
    }
    Result of_numbers() {
        return chain({{'+', Code::add}, {'-', Code::subtract}}, [this] {
            return chain({{'*', Code::multiply}, {'/', Code::divide}}, [this] { return signed_power(); });
        });
    }
    Result signed_power() {
        if (++depth_ > kDeepest) return fail(at_, "too many signs follow each other");
        Result result;
        if (take("-")) {
            skip_blanks();
            const std::size_t begin = at_;
            const int level = level_;
            const Result of = signed_power();
            if (of && is_number(*of, begin)) result = apply(Code::negate, level, {*of}, false);
        } else {
            result = power();
        }
        --depth_;
        return result;
    }
    Result power() {
        skip_blanks();
        const std::size_t begin = at_;
        const int level = level_;
        const Result base = primary();
        if (!base || !take("^")) return base;
        skip_blanks();
        const std::size_t second = at_;
        const Result exponent = signed_power();
        if (!exponent || !is_number(*base, begin) || !is_number(*exponent, second)) return std::nullopt;
        return apply(Code::power, level, {*base, *exponent}, false);
    }
    Result primary() {
        skip_blanks();
        if (at_ >= text_.size()) return fail(at_, "the formula ends here, and a value is missing");
        if (take("(")) {
            const Result inside = ternary();
            if (inside && !take(")")) return fail(at_, "')' is expected");
            return inside;
        }
        const char c = text_[at_];
        if (is_digit(c) || c == '.') return number();
        if (is_letter(c)) return named();
        return fail(at_, fmt::format("'{}' is not expected here", here()));
    }
    Result number() {
        const std::size_t begin = at_;
        while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.')) ++at_;
        if (at_ + 1 < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E') &&
            (is_digit(text_[at_ + 1]) || text_[at_ + 1] == '-' || text_[at_ + 1] == '+')) {
            at_ += 2;
            while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
        }
        const std::string_view digits = text_.substr(begin, at_ - begin);
        const auto value = number_from_text<double>(digits);
        if (!value || std::abs(*value) > 1e30) return fail(begin, fmt::format("'{}' is no number", digits));
        const bool percent = at_ < text_.size() && text_[at_] == '%';
        if (percent) ++at_;
        return emit_constant(static_cast<float>(percent ? *value / 100 : *value));
    }
    Result named() {
        const std::size_t begin = at_;
        const std::string_view word = next_word();
        at_ += word.size();
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == '(')
            return word == kInSpan ? inside_span() : function(word, begin);
        for (const QuantityName& known : kQuantityNames) {
            if (known.name != word) continue;
            if (!is_known_to(known, use_))
                return fail(begin, fmt::format("'{}' is {}", word, why_unknown(known.quantity)));
            return emit(Code::quantity, level_, {known.quantity == Quantity::prompt, std::nullopt}, 0,
                        known.quantity);
        }
        std::vector<std::string_view> names;
        for (const QuantityName& known : kQuantityNames)
            if (is_known_to(known, use_)) names.push_back(known.name);
        for (const FunctionName& known : kFunctionNames)
            if (known.name == word) return fail(begin, fmt::format("{} is a function: {}(...)", word, word));
        return fail(begin, fmt::format("unknown name '{}'{} ({})", word, spec_text::near_hint(word, names),
                                       fmt::join(names, " ")));
    }
    std::string_view why_unknown(Quantity quantity) const {
        if (use_ == FormulaUse::score) return "known only at a selection: name it in choose";
        return quantity == Quantity::head
                   ? "a query head's, and a selection is for a KV head: take kvhead"
                   : "a row's value, and a selection sees what its scores kept of it: take s";
    }
    Result function(std::string_view word, std::size_t begin) {
        const auto* const known = std::find_if(kFunctionNames.begin(), kFunctionNames.end(),
                                               [&](const FunctionName& f) { return f.name == word; });
        if (known == kFunctionNames.end()) {
            std::vector<std::string_view> names;
            for (const FunctionName& f : kFunctionNames) names.push_back(f.name);
            names.push_back(kInSpan);
            return fail(begin, fmt::format("unknown function '{}'{} ({})", word,
                                           spec_text::near_hint(word, names), fmt::join(names, " ")));
        }
        take("(");
        if (!is_known_to(*known, use_))
            return fail(begin, fmt::format("{} looks over all tokens, and a row knows one at a time: it "
                                           "belongs to choose",
                                           word));
        const int level = level_;
        float share = 0;
        if (known->code == Code::first) {
            const Result of = constant_argument("the first value of first() is a share, such as 50%");
            if (!of) return std::nullopt;
            share = *of->constant;
            if (!(share >= 0 && share <= 1)) return fail(begin, "the share of first() is from 0% to 100%");
            if (!take(",")) return fail(at_, "',' is expected: first(50%, a, b)");
        }
        std::vector<Operand> values;
        for (int i = 0; i < known->n_arguments; ++i) {
            if (i > 0 && !take(","))
                return fail(at_,
                            fmt::format("',' is expected: {} takes {} values", word, known->n_arguments));
            skip_blanks();
            const std::size_t from = at_;
            const Result value = ternary();
            if (!value || !is_number(*value, from)) return std::nullopt;
            values.push_back(*value);
        }
        Code code = known->code;
        int width = 0;
        if (known->code == Code::smooth_average && !smoothing(code, width)) return std::nullopt;
        if (!take(")"))
            return fail(at_, fmt::format("')' is expected: {} takes {} value{}", word, known->n_arguments,
                                         known->n_arguments == 1 ? "" : "s"));
        if (known->code == Code::smooth_average) {
            has_smoothing_ = has_smoothing_ || width > 1;
            if (width == 1 || !smooths_) return values[0];
        }
        if (is_over_tokens(code)) return emit(code, level, {}, share, Quantity::row, width);
        return values.size() == 1   ? apply(code, level, {values[0]}, false)
               : values.size() == 2 ? apply(code, level, {values[0], values[1]}, false)
                                    : apply(code, level, {values[0], values[1], values[2]}, false);
    }
    /// Reads a value that must be a constant, and takes back its operation.
    Result constant_argument(const char* what) {
        skip_blanks();
        const std::size_t from = at_;
        const Result value = ternary();
        if (!value) return std::nullopt;
        if (!value->constant || value->is_truth) return fail(from, what);
        ops_.pop_back();
        --level_;
        return value;
    }
    /// Reads `, avg, 5` after the smoothed value; without it, takes the lane's kernel.
    bool smoothing(Code& code, int& width) {
        constexpr const char* kForm =
            "smooth takes a value, and as it likes avg or max with an odd width: smooth(s, avg, 5)";
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == ')') {
            if (kernel_ < 0) code = Code::smooth_maximum;
            width = std::max(std::abs(kernel_), 1);
            return true;
        }
        const auto wrong = [&] {
            fail(at_, kForm);
            return false;
        };
        if (!take(",")) return wrong();
        if (take_word("max"))
            code = Code::smooth_maximum;
        else if (!take_word("avg"))
            return wrong();
        if (!take(",")) return wrong();
        const Result of = constant_argument(kForm);
        if (!of) return false;
        width = static_cast<int>(*of->constant);
        if (static_cast<float>(width) == *of->constant && width % 2 == 1 && width >= 1 && width <= 255)
            return true;
        fail(at_, "the width of smooth is an odd number from 1 to 255");
        return false;
    }

    FormulaTable table() const {
        FormulaTable table;
        table.n_ops = static_cast<std::int32_t>(ops_.size());
        table.n_lists = deepest_ + 1;
        std::copy(ops_.begin(), ops_.end(), table.ops);
        for (const FormulaOp& op : ops_)
            if (op.code == Code::quantity) table.uses |= std::uint64_t{1} << static_cast<int>(op.quantity);
        const auto add = [&](std::size_t first, std::size_t last, int part) {
            table.steps[table.n_steps++] = {static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last),
                                            static_cast<std::uint8_t>(part), 0};
        };
        for (std::size_t i = 0; i < ops_.size();) {
            std::size_t end = i;
            while (end < ops_.size() && !is_over_tokens(ops_[end].code)) ++end;
            if (end > i) add(i, end, 0);
            for (int part = 0; end < ops_.size() && part < FormulaTable::kParts; ++part)
                add(end, end + 1, part);
            i = end + 1;
        }
        return table;
    }

    static constexpr int kDeepest = 64;
    std::string_view text_;
    FormulaUse use_;
    int kernel_;
    bool own_rows_, any_span_, names_span_ = false;
    Spans spans_{};
    bool smooths_, has_smoothing_ = false;
    FormulaFault& fault_;
    std::size_t at_ = 0;
    int level_ = 0, deepest_ = 0, depth_ = 0;
    std::vector<FormulaOp> ops_;
};

/// Reads `A..B`, positions from A to B.
std::optional<std::string> range_formula(std::string_view value, FormulaFault* fault) {
    const std::size_t dots = value.find("..");
    if (dots == std::string_view::npos) return std::nullopt;
    const auto first = number_from_text<int>(value.substr(0, dots)),
               last = number_from_text<int>(value.substr(dots + 2));
    if (!first || !last || *first < 0 || *last < *first) {
        *fault = {0, "positions ascend from 0, such as 0..15"};
        return std::nullopt;
    }
    return fmt::format("position >= {} and position <= {}", *first, *last);
}

}  // namespace

FormulaRef parse_formula(std::string_view text, FormulaUse use, FormulaFault* fault,
                         const FormulaSetting& setting) {
    FormulaFault found;
    bool has_spans = setting.own_rows;
    std::optional<FormulaTable> table, unsmoothed;
    if (text.size() > kLongestFormula) {
        found = {kLongestFormula, fmt::format("a formula has at most {} characters", kLongestFormula)};
    } else {
        Parser parser(text, use, setting, true, found);
        table = parser.parse();
        has_spans = has_spans || parser.names_span();
        if (table && parser.has_smoothing()) unsmoothed = Parser(text, use, setting, false, found).parse();
    }
    if (fault != nullptr) *fault = found;
    if (!table) return {};
    return {std::make_shared<const Formula>(Formula{std::string(text), setting.kernel, *table, unsmoothed,
                                                    std::string(has_spans ? setting.spans : ""),
                                                    setting.own_rows})};
}

FormulaRef choose_formula(std::string_view value, FormulaFault* fault, const FormulaSetting& setting) {
    if (fault != nullptr) *fault = {};
    if (value == "s") return {};
    return parse_formula(value, FormulaUse::choose, fault, setting);
}

FormulaRef score_formula(std::string_view value, FormulaFault* fault, const FormulaSetting& setting) {
    if (fault != nullptr) *fault = {};
    if (value == "attention" && !setting.own_rows) return {};
    return parse_formula(value == "attention" ? "alpha*s+ptau" : value, FormulaUse::score, fault, setting);
}

bool is_of_rows(const FormulaTable& score) {
    return score.names(Quantity::s) ||
           std::any_of(kQuantityNames.begin(), kQuantityNames.end(), [&](const QuantityName& quantity) {
               return quantity.known == KnownIn::rows && score.names(quantity.quantity);
           });
}

FormulaRef protect_formula(std::string_view value, FormulaFault* fault, const FormulaSetting& setting) {
    FormulaFault found;
    if (fault != nullptr) *fault = {};
    if (value == "none" || value == "system") return {};  // a run puts the range of its system part there
    const std::optional<std::string> range = range_formula(value, &found);
    if (!found.what.empty()) {
        if (fault != nullptr) *fault = found;
        return {};
    }
    return parse_formula(range ? *range : value, FormulaUse::protect, fault, setting);
}

}  // namespace keyhole
