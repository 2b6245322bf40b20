#include "engine/run/command.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/run/sampler.h"

#include <fmt/ranges.h>

#include <optional>

namespace keyhole {

namespace {

constexpr std::string_view kForms =
    "lane <index> <spec>, add <spec>, remove <index>, restore <index> <spec>, follow on|off, "
    "sampling temperature=T,top_k=K,top_p=P, fork <index> [<spec>], rewind <step>, branch <id>, "
    "evict|pin|unpin <index> <position> "
    "[L<layer>[.H<head>]], force <id>[,<id>...], say|say_after \"<text>\"";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
    fail(ErrorCode::wrong_use, "command '{}': {}; commands are: {}", shown_text(text), why, kForms);
}

std::string_view next_word(std::string_view& rest) {
    const std::size_t begin = std::min(rest.find_first_not_of(" \t"), rest.size());
    rest.remove_prefix(begin);
    const std::size_t end = std::min(rest.find_first_of(" \t"), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(end);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    return word;
}

int count(std::string_view text, std::string_view word, std::string_view what) {
    if (const auto value = number_from_text<int>(word, 0)) return *value;
    refuse(text, fmt::format("{}: {}", what, no_number<int>(word, 0)));
}

[[noreturn]] void too_much(std::string_view text, std::string_view rest) {
    refuse(text, fmt::format("unexpected '{}' after the command", shown_text(rest)));
}

/// Parses a count that is the last word of a command.
int last_count(std::string_view text, std::string_view rest, std::string_view what) {
    const std::string_view word = next_word(rest);
    if (!rest.empty()) too_much(text, rest);
    return count(text, word, what);
}

TokenPlace parse_place(std::string_view text, std::string_view rest) {
    TokenPlace at;
    at.index = count(text, next_word(rest), "lane index");
    at.position = count(text, next_word(rest), "position");
    const std::string_view where = next_word(rest);
    if (!rest.empty()) too_much(text, rest);
    if (where.empty()) return at;
    const std::size_t dot = where.find('.');
    const std::string_view layer = where.substr(0, dot);
    const auto no_place = [&] {
        refuse(text, fmt::format("'{}' is not L<layer>[.H<head>]", shown_text(where)));
    };
    if (!layer.starts_with('L')) no_place();
    at.layer = count(text, layer.substr(1), "layer");
    if (dot == std::string_view::npos) return at;
    const std::string_view head = where.substr(dot + 1);
    if (!head.starts_with('H')) no_place();
    at.head = count(text, head.substr(1), "query head");
    return at;
}

std::string format_place(const TokenPlace& at) {
    std::string text = fmt::format("{} {}", at.index, at.position);
    if (at.layer >= 0) text += fmt::format(" L{}", at.layer);
    if (at.layer >= 0 && at.head >= 0) text += fmt::format(".H{}", at.head);
    return text;
}

Sampling parse_sampling(std::string_view text, std::string_view values) {
    Sampling sampling;
    if (values.empty()) refuse(text, "it needs at least one value");
    while (!values.empty()) {
        const std::string_view item = values.substr(0, values.find(','));
        values.remove_prefix(std::min(item.size() + 1, values.size()));
        const std::size_t equals = item.find('=');
        const std::string_view key = item.substr(0, equals);
        const std::string_view value =
            equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
        const auto temperature = number_from_text<double>(value, 0, kHottest);
        const auto mass = number_from_text<double>(value, kLeastMass, 1);
        const auto whole = number_from_text<int>(value, 0);
        const auto penalty = number_from_text<double>(value, kLeastPenalty, kMostPenalty);
        if (key == "temperature" && temperature)
            sampling.temperature = *temperature;
        else if (key == "top_k" && whole)
            sampling.top_k = *whole;
        else if (key == "top_p" && mass)
            sampling.top_p = *mass;
        else if (key == "repetition_penalty" && penalty)
            sampling.repetition_penalty = *penalty;
        else if (key == "no_repeat_ngram" && whole)
            sampling.no_repeat_ngram = *whole;
        else if (key == "min_tokens" && whole)
            sampling.min_tokens = *whole;
        else
            refuse(text, fmt::format("'{}' does not fit: temperature from 0 to {}, top_k from 0, top_p from "
                                     "{} to 1, repetition_penalty from {} to {}, no_repeat_ngram from 0, "
                                     "min_tokens from 0",
                                     shown_text(item), kHottest, kLeastMass, kLeastPenalty, kMostPenalty));
    }
    return sampling;
}

std::vector<int> parse_tokens(std::string_view text, std::string_view list) {
    std::vector<int> tokens;
    if (list.empty()) refuse(text, "it needs at least one token id");
    for (bool more = true; more;) {
        const std::size_t comma = list.find(',');
        more = comma != std::string_view::npos;
        tokens.push_back(count(text, list.substr(0, comma), "token id"));
        list.remove_prefix(more ? comma + 1 : list.size());
    }
    return tokens;
}

/// Parses a quoted text; words without quotes are taken as they are.
std::string parse_quoted(std::string_view text, std::string_view words) {
    if (words.empty()) refuse(text, "it needs text");
    if (words.front() != '"') return std::string(words);
    std::string out;
    for (std::size_t i = 1; i < words.size(); ++i) {
        if (words[i] == '"') {
            if (i + 1 < words.size()) too_much(text, words.substr(i + 1));
            if (out.empty()) refuse(text, "it needs text");
            return out;
        }
        if (words[i] != '\\') {
            out += words[i];
            continue;
        }
        const char c = ++i < words.size() ? words[i] : ' ';
        if (c == 'n')
            out += '\n';
        else if (c == 't')
            out += '\t';
        else if (c == '"' || c == '\\')
            out += c;
        else
            refuse(text, fmt::format("'\\{}' is none of \\n, \\t, \\\", \\\\",
                                     shown_text(words.substr(std::min(i, words.size()), 1))));
    }
    refuse(text, "the closing quote is missing");
}

std::string format_quoted(std::string_view words) {
    std::string out = "\"";
    for (const char c : words) {
        if (c == '"' || c == '\\') out += '\\';
        out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
    }
    return out + "\"";
}

struct Formatter {
    std::string operator()(const SetLane& c) const {
        return fmt::format("lane {} {}", c.index, format_lane_spec(c.spec));
    }
    std::string operator()(const AddLane& c) const { return "add " + format_lane_spec(c.spec); }
    std::string operator()(const RemoveLane& c) const { return fmt::format("remove {}", c.index); }
    std::string operator()(const RestoreLane& c) const {
        return fmt::format("restore {} {}", c.index, format_lane_spec(c.spec));
    }
    std::string operator()(const SetFollow& c) const { return c.on ? "follow on" : "follow off"; }
    std::string operator()(const SetSampling& c) const {
        const Sampling& s = c.sampling;
        std::string text =
            fmt::format("sampling temperature={},top_k={},top_p={}", s.temperature, s.top_k, s.top_p);
        // Left out where they are off, so that older programs read the traces of such runs.
        if (s.repetition_penalty != 1) text += fmt::format(",repetition_penalty={}", s.repetition_penalty);
        if (s.no_repeat_ngram != 0) text += fmt::format(",no_repeat_ngram={}", s.no_repeat_ngram);
        if (s.min_tokens != 0) text += fmt::format(",min_tokens={}", s.min_tokens);
        return text;
    }
    std::string operator()(const ForkLane& c) const {
        return fmt::format("fork {}{}", c.index, c.spec ? " " + format_lane_spec(*c.spec) : "");
    }
    std::string operator()(const Rewind& c) const { return fmt::format("rewind {}", c.row); }
    std::string operator()(const GoToBranch& c) const { return fmt::format("branch {}", c.id); }
    std::string operator()(const EvictToken& c) const { return "evict " + format_place(c.at); }
    std::string operator()(const PinToken& c) const { return "pin " + format_place(c.at); }
    std::string operator()(const UnpinToken& c) const { return "unpin " + format_place(c.at); }
    std::string operator()(const ForceTokens& c) const {
        return fmt::format("force{} {}", c.instead ? "!" : "", fmt::join(c.tokens, ","));
    }
    std::string operator()(const SayText& c) const {
        return fmt::format("say{} {}", c.after ? "_after" : c.instead ? "!" : "", format_quoted(c.text));
    }
};

}  // namespace

bool turns_back(const Command& command) {
    return std::holds_alternative<Rewind>(command) || std::holds_alternative<GoToBranch>(command);
}

std::string format_command(const Command& command) {
    return std::visit(Formatter{}, command);
}

Command parse_command(std::string_view text) {
    std::string_view rest = text;
    const std::string_view verb = next_word(rest);
    if (verb == "lane") {
        const int index = count(text, next_word(rest), "lane index");
        return SetLane{index, parse_lane_spec(rest)};
    }
    if (verb == "add") return AddLane{parse_lane_spec(rest)};
    if (verb == "remove") return RemoveLane{last_count(text, rest, "lane index")};
    if (verb == "restore") {
        const int index = count(text, next_word(rest), "lane index");
        return RestoreLane{index, parse_lane_spec(rest)};
    }
    if (verb == "follow") {
        if (rest != "on" && rest != "off") refuse(text, "follow is on or off");
        return SetFollow{rest == "on"};
    }
    if (verb == "sampling") return SetSampling{parse_sampling(text, rest)};
    if (verb == "fork") {
        ForkLane fork{count(text, next_word(rest), "lane index"), {}};
        if (!rest.empty()) fork.spec = parse_lane_spec(rest);
        return fork;
    }
    if (verb == "rewind") return Rewind{last_count(text, rest, "step")};
    if (verb == "branch") return GoToBranch{last_count(text, rest, "branch")};
    if (verb == "evict") return EvictToken{parse_place(text, rest)};
    if (verb == "pin") return PinToken{parse_place(text, rest)};
    if (verb == "unpin") return UnpinToken{parse_place(text, rest)};
    if (verb == "force" || verb == "force!") return ForceTokens{parse_tokens(text, rest), verb == "force!"};
    if (verb == "say" || verb == "say!" || verb == "say_after")
        return SayText{parse_quoted(text, rest), verb == "say!", verb == "say_after"};
    refuse(text, fmt::format("'{}' is not known", shown_text(verb)));
}

}  // namespace keyhole
