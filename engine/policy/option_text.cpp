#include "engine/policy/option_text.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/head_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace keyhole {
namespace {

using spec_text::Item;
using spec_text::Reader;

/// Returns the word's value.
int read_word(const Reader& reader, std::string_view what, Item item, std::span<const OptionWord> words) {
    std::vector<std::string_view> texts;
    for (const OptionWord& word : words) texts.push_back(word.text);
    return words[reader.word(what, item, texts)].value;
}

std::string text_of_word(int value, std::span<const OptionWord> words) {
    for (const OptionWord& word : words)
        if (word.value == value) return std::string(word.text);
    KH_ASSERT(false, "no word for value {}", value);
    return {};
}

// --- amounts and the tau schedule --------------------------------------------------------------------------

/// Reads `64`, `50%`, or the option's own word: rest for recent, all for others.
Amount read_amount(const Reader& reader, Amount PolicyParams::*member, Item item) {
    const bool is_budget = member == &PolicyParams::budget, is_recent = member == &PolicyParams::recent;
    const std::string_view word = is_recent ? "rest" : "all";
    if (item.text == word) return {is_recent ? Amount::Unit::rest : Amount::Unit::all, 0};
    constexpr std::string_view kBeside = "prompt+";
    if (is_budget && item.text.starts_with(kBeside))
        return {Amount::Unit::beside,
                reader.number(item.part(kBeside.size()), "prompt+N is N tokens beside the prompt")};
    const bool is_percent = item.text.ends_with('%');
    const std::string form = fmt::format("a number of tokens, a percentage such as 50%, or {}", word);
    const double value =
        reader.number({item.text.substr(0, item.text.size() - (is_percent ? 1 : 0)), item.at}, form);
    return {is_percent ? Amount::Unit::percent : Amount::Unit::tokens, value};
}

std::string text_of_amount(const Amount& amount) {
    switch (amount.unit) {
        case Amount::Unit::all:
            return "all";
        case Amount::Unit::rest:
            return "rest";
        case Amount::Unit::percent:
            return fmt::format("{}%", amount.value);
        case Amount::Unit::beside:
            return fmt::format("prompt+{}", amount.value);
        case Amount::Unit::tokens:
            break;
    }
    return fmt::format("{}", amount.value);
}

constexpr std::array kCurveWords = {OptionWord{"linear", static_cast<int>(TauSchedule::Shape::linear)},
                                    OptionWord{"cosine", static_cast<int>(TauSchedule::Shape::cosine)}};
constexpr std::string_view kTauForm = "1, 1..2, 1..2@cosine or points (0:1 20:1.4 100:2)";

TauSchedule read_tau(const Reader& reader, Item item) {
    TauSchedule tau;
    if (item.text.find(':') != std::string_view::npos) {
        tau.shape = TauSchedule::Shape::points;
        for (const Item& point : spec_text::split_blanks(item)) {
            const std::size_t colon = point.text.find(':');
            if (colon == std::string_view::npos) reader.fault(point, fmt::format("tau is {}", kTauForm));
            tau.points.emplace_back(reader.number(point.part(0, colon), kTauForm),
                                    reader.number(point.part(colon + 1), kTauForm));
        }
        tau.begin = tau.points.front().second;  // held before the first point, also for prompt rows
        tau.end = tau.points.back().second;
        return tau;
    }
    const std::size_t at_sign = item.text.find('@');
    const Item range = item.part(0, at_sign);
    const std::size_t dots = range.text.find("..");
    if (dots == std::string_view::npos) {
        if (at_sign != std::string_view::npos) reader.fault(item, "a curve needs two ends: 1..2@cosine");
        tau.begin = tau.end = reader.number(range, kTauForm);
        return tau;
    }
    tau.shape = TauSchedule::Shape::linear;
    tau.begin = reader.number(range.part(0, dots), kTauForm);
    tau.end = reader.number(range.part(dots + 2), kTauForm);
    if (at_sign != std::string_view::npos) {
        tau.shape = static_cast<TauSchedule::Shape>(
            read_word(reader, "curve of tau", item.part(at_sign + 1), kCurveWords));
    }
    return tau;
}

std::string text_of_tau(const TauSchedule& tau) {
    switch (tau.shape) {
        case TauSchedule::Shape::constant:
            return fmt::format("{}", tau.begin);
        case TauSchedule::Shape::linear:
            return fmt::format("{}..{}", tau.begin, tau.end);
        case TauSchedule::Shape::cosine:
            return fmt::format("{}..{}@cosine", tau.begin, tau.end);
        case TauSchedule::Shape::points:
            break;
    }
    std::string text;
    for (const auto& [t, value] : tau.points) {
        text += fmt::format("{}{}:{}", text.empty() ? "(" : " ", t, value);
    }
    return text + ")";
}

// --- formulas ----------------------------------------------------------------------------------------------

/// Reads a formula or a word for one; its parentheses are gone.
FormulaText read_formula(const Reader& reader, const LaneOption& option, Item item) {
    for (Item inner = spec_text::unwrapped(item); inner.text != item.text; inner = spec_text::unwrapped(item))
        item = inner;
    FormulaText value{std::string(item.text)};
    FormulaFault fault;
    (void)formula_of(option, value, {0, FormulaSetting::kAnySpans}, &fault);  // validate() knows the lane's
    if (!fault.what.empty()) reader.fault(item.part(std::min(fault.at, item.text.size())), fault.what);
    return value;
}

/// Words stand alone; a formula has parentheses, since it may hold commas.
std::string text_of_formula(const FormulaText& value) {
    const bool is_range =
        value.text.find("..") != std::string::npos && value.text.find('@') == std::string::npos;
    constexpr std::array<std::string_view, 6> kWords = {"s", "none", "prompt", "system", "attention", "fair"};
    const bool is_word = is_range || std::find(kWords.begin(), kWords.end(), value.text) != kWords.end();
    return is_word ? value.text : "(" + value.text + ")";
}

// --- budgets of heads --------------------------------------------------------------------------------------

HeadTable read_head_table(const Reader& reader, Item item) {
    if (item.text == "none") return {};
    const bool is_table = is_head_table_text(item.text);
    if (!is_table && !reader.reads_files())
        reader.fault(item, "heads is a table here, such as (64 all / 2*32); no file is read");
    std::string fault;
    HeadTable table = is_table ? head_table_of(item.text, &fault) : head_file_of(item.text, &fault);
    if (!fault.empty()) reader.fault(item, fault);
    return table;
}

std::string text_of_head_table(const HeadTable& table) {
    const std::string text = head_table_text(table);
    return table.empty() ? text : "(" + text + ")";
}

CalibrationRef read_calibration_option(const Reader& reader, Item item) {
    if (item.text == "none") return {};
    CalibrationRef value{std::string(item.text), nullptr};
    if (reader.reads_files()) value.read = read_calibration(value.path);
    return value;
}

// --- sharing of KV heads -----------------------------------------------------------------------------------

using Kind = KvSharing::Kind;

constexpr std::array kKvWords = {
    OptionWord{"own", static_cast<int>(Kind::own)}, OptionWord{"mha", static_cast<int>(Kind::mha)},
    OptionWord{"gqa", static_cast<int>(Kind::gqa)}, OptionWord{"mqa", static_cast<int>(Kind::mqa)},
    OptionWord{"mlkv", static_cast<int>(Kind::mlkv)}};

int read_count(const Reader& reader, Item item) {
    const int value = reader.integer(item);
    if (value < 1 || value > kMostSpecParts)
        reader.fault(item, fmt::format("layers and KV heads are 1 or more, and at most {}", kMostSpecParts));
    return value;
}

/// Reads `gqa:4`, `mlkv:m=4,g=1`.
void read_kv(const Reader& reader, Item item, KvSharing& sharing) {
    const std::size_t colon = item.text.find(':');
    sharing.kind = static_cast<Kind>(read_word(reader, "sharing", item.part(0, colon), kKvWords));
    sharing.n_kv_layers = sharing.n_kv_heads = 0;
    const bool counts = sharing.kind == Kind::gqa || sharing.kind == Kind::mlkv;
    if (counts && colon == std::string_view::npos)
        reader.fault(item, sharing.kind == Kind::gqa ? "gqa names its KV heads: gqa:4"
                                                     : "mlkv names its layers and KV heads: (mlkv:m=4,g=1)");
    if (!counts) {
        if (colon != std::string_view::npos)
            reader.fault(item.part(colon), fmt::format("{} takes no number", item.text.substr(0, colon)));
        return;
    }
    const Item rest = item.part(colon + 1);
    if (sharing.kind == Kind::gqa) {
        sharing.n_kv_heads = read_count(reader, rest);
        return;
    }
    for (const Item& part : reader.split_commas(rest)) {
        const std::size_t equals = part.text.find('=');
        if (equals == std::string_view::npos) reader.fault(part, "m=layers and g=heads are expected");
        constexpr std::array<std::string_view, 2> kNames = {"m", "g"};
        int& to = reader.word("part of mlkv", part.part(0, equals), kNames) == 0 ? sharing.n_kv_layers
                                                                                 : sharing.n_kv_heads;
        if (to != 0) reader.fault(part, "it is given twice");
        to = read_count(reader, part.part(equals + 1));
    }
    if (sharing.n_kv_layers == 0 || sharing.n_kv_heads == 0)
        reader.fault(rest, "mlkv names its layers and KV heads: (mlkv:m=4,g=1)");
}

std::string text_of_kv(const KvSharing& sharing) {
    const std::string text = format_kv_sharing(sharing);
    return text.find(',') == std::string::npos ? text : "(" + text + ")";
}

}  // namespace

void read_option(const Reader& reader, const LaneOption& option, Item item, LaneSpec& lane) {
    PolicyParams& policy = lane.policy;
    std::visit(
        [&]<class Member>(Member member) {
            if constexpr (std::is_same_v<Member, int PolicyParams::*>)
                policy.*member = reader.integer(item);
            else if constexpr (std::is_same_v<Member, double PolicyParams::*>)
                policy.*member = reader.real(item);
            else if constexpr (std::is_same_v<Member, std::uint64_t PolicyParams::*>)
                policy.*member = reader.unsigned_integer(item);
            else if constexpr (std::is_same_v<Member, Amount PolicyParams::*>)
                policy.*member = read_amount(reader, member, item);
            else if constexpr (std::is_same_v<Member, TauSchedule PolicyParams::*>)
                policy.*member = read_tau(reader, item);
            else if constexpr (std::is_same_v<Member, FormulaText PolicyParams::*>)
                policy.*member = read_formula(reader, option, item);
            else if constexpr (std::is_same_v<Member, HeadTable PolicyParams::*>)
                policy.*member = read_head_table(reader, item);
            else if constexpr (std::is_same_v<Member, CalibrationRef PolicyParams::*>)
                policy.*member = read_calibration_option(reader, item);
            else if constexpr (std::is_same_v<Member, WordsOf<PolicyParams>>)
                member.set(policy, read_word(reader, option.name, item, member.words));
            else if constexpr (std::is_same_v<Member, WordsOf<KvSharing>>)
                member.set(lane.sharing, read_word(reader, option.name, item, member.words));
            else if constexpr (std::is_same_v<Member, KvSharing LaneSpec::*>)
                read_kv(reader, item, lane.*member);
            else
                KH_ASSERT(false, "'{}' is no key", option.name);
        },
        option.member);
}

std::string option_text(const LaneOption& option, const LaneSpec& lane) {
    const PolicyParams& policy = lane.policy;
    return std::visit(
        [&]<class Member>(Member member) -> std::string {
            if constexpr (std::is_same_v<Member, std::monostate>)
                return std::string(preset_name(policy.preset));
            else if constexpr (std::is_same_v<Member, Amount PolicyParams::*>)
                return text_of_amount(policy.*member);
            else if constexpr (std::is_same_v<Member, TauSchedule PolicyParams::*>)
                return text_of_tau(policy.*member);
            else if constexpr (std::is_same_v<Member, FormulaText PolicyParams::*>)
                return text_of_formula(policy.*member);
            else if constexpr (std::is_same_v<Member, HeadTable PolicyParams::*>)
                return text_of_head_table(policy.*member);
            else if constexpr (std::is_same_v<Member, CalibrationRef PolicyParams::*>)
                return policy.*member ? "(" + (policy.*member).path + ")" : "none";
            else if constexpr (std::is_same_v<Member, WordsOf<PolicyParams>>)
                return text_of_word(member.get(policy), member.words);
            else if constexpr (std::is_same_v<Member, WordsOf<KvSharing>>)
                return text_of_word(member.get(lane.sharing), member.words);
            else if constexpr (std::is_same_v<Member, KvSharing LaneSpec::*>)
                return text_of_kv(lane.*member);
            else
                return fmt::format("{}", policy.*member);
        },
        option.member);
}

void read_override_value(const Reader& reader, Item item, Override& o) {
    const LaneOption& option = lane_option(o.field);
    const OptionMember& member = option.member;
    if (const auto* amount = std::get_if<Amount PolicyParams::*>(&member))
        o.amount = read_amount(reader, *amount, item);
    else if (std::holds_alternative<TauSchedule PolicyParams::*>(member))
        o.tau = read_tau(reader, item);
    else if (std::holds_alternative<FormulaText PolicyParams::*>(member))
        o.formula = read_formula(reader, option, item);
    else
        o.value = reader.real(item);
}

std::string override_value_text(const Override& o) {
    LaneSpec lane;
    set_override(o, lane.policy);
    return option_text(lane_option(o.field), lane);
}

KvSharing parse_kv_sharing(std::string_view text) {
    KvSharing sharing;
    read_kv(Reader(text), spec_text::unwrapped({text, 0}), sharing);
    return sharing;
}

std::string format_kv_sharing(const KvSharing& sharing) {
    const std::string kind = text_of_word(static_cast<int>(sharing.kind), kKvWords);
    if (sharing.kind == Kind::gqa) return fmt::format("{}:{}", kind, sharing.n_kv_heads);
    if (sharing.kind == Kind::mlkv)
        return fmt::format("{}:m={},g={}", kind, sharing.n_kv_layers, sharing.n_kv_heads);
    return kind;
}

}  // namespace keyhole
