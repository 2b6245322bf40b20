#include "engine/session/command.h"

#include "engine/base/error.h"

#include <charconv>
#include <optional>

namespace keyhole {

namespace {

constexpr std::string_view kForms =
    "lane <index> <spec>, add <spec>, remove <index>, follow on|off, sampling temperature=T,top_k=K,top_p=P";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
    fail(ErrorCode::wrong_use, "command '{}': {}; commands are: {}", text, why, kForms);
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

template <class Number>
std::optional<Number> number(std::string_view word) {
    Number value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    return value;
}

int lane_index(std::string_view text, std::string_view word) {
    const auto index = number<int>(word);
    if (!index || *index < 0) refuse(text, fmt::format("'{}' is no lane index", word));
    return *index;
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
        const auto real = number<double>(value);
        const auto whole = number<int>(value);
        if (key == "temperature" && real && *real >= 0)
            sampling.temperature = *real;
        else if (key == "top_k" && whole && *whole >= 0)
            sampling.top_k = *whole;
        else if (key == "top_p" && real && *real > 0 && *real <= 1)
            sampling.top_p = *real;
        else
            refuse(text,
                   fmt::format("'{}' does not fit: temperature >= 0, top_k >= 0, 0 < top_p <= 1", item));
    }
    return sampling;
}

struct Formatter {
    std::string operator()(const SetLane& c) const {
        return fmt::format("lane {} {}", c.index, format_lane_spec(c.spec));
    }
    std::string operator()(const AddLane& c) const { return "add " + format_lane_spec(c.spec); }
    std::string operator()(const RemoveLane& c) const { return fmt::format("remove {}", c.index); }
    std::string operator()(const SetFollow& c) const { return c.on ? "follow on" : "follow off"; }
    std::string operator()(const SetSampling& c) const {
        return fmt::format("sampling temperature={},top_k={},top_p={}", c.sampling.temperature,
                           c.sampling.top_k, c.sampling.top_p);
    }
};

}  // namespace

std::string format_command(const Command& command) {
    return std::visit(Formatter{}, command);
}

Command parse_command(std::string_view text) {
    std::string_view rest = text;
    const std::string_view verb = next_word(rest);
    if (verb == "lane") {
        const int index = lane_index(text, next_word(rest));
        return SetLane{index, parse_lane_spec(rest)};
    }
    if (verb == "add") return AddLane{parse_lane_spec(rest)};
    if (verb == "remove") return RemoveLane{lane_index(text, next_word(rest))};
    if (verb == "follow") {
        if (rest != "on" && rest != "off") refuse(text, "follow is on or off");
        return SetFollow{rest == "on"};
    }
    if (verb == "sampling") return SetSampling{parse_sampling(text, rest)};
    refuse(text, fmt::format("'{}' is not known", verb));
}

}  // namespace keyhole
