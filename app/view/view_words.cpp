#include "app/view/view_export.h"

#include "engine/analysis/measure_curves.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

/// Parses numbers separated by `between`; nullopt if the text is anything else.
std::optional<std::vector<int>> numbers(std::string_view text, std::string_view between) {
    std::vector<int> out;
    while (true) {
        const std::size_t at = text.find(between);
        const auto value = number_from_text<int>(text.substr(0, at), 0);
        if (!value) return std::nullopt;
        out.push_back(*value);
        if (at == std::string_view::npos) return out;
        text.remove_prefix(at + between.size());
    }
}

/// Reads the arguments of a word. Returns false if they are not what its kind takes.
bool read_arguments(ViewWord& word, std::string_view text) {
    switch (word.kind->arguments) {
        case PictureArguments::none:
            return text.empty();
        case PictureArguments::two_lanes: {
            const auto lanes = numbers(text, "-");
            if (!lanes || lanes->size() != 2) return false;
            word.a = (*lanes)[0];
            word.b = (*lanes)[1];
            return true;
        }
        case PictureArguments::some_lanes: {
            const auto lanes = text.empty() ? std::vector<int>() : numbers(text, "+");
            if (lanes) word.lanes = *lanes;
            return lanes.has_value();
        }
        case PictureArguments::positions: {
            const auto positions = numbers(text, "+");
            if (!positions || positions->size() > ViewState::kMaxCurves) return false;
            word.positions = *positions;
            return true;
        }
        case PictureArguments::span: {
            const auto span = numbers(text, "..");
            if (span && span->size() == 2 && (*span)[0] <= (*span)[1])
                word.positions = *span;
            else
                word.words = text;
            return !text.empty();
        }
        case PictureArguments::measure:
            word.words = text;
            return !text.empty();
    }
    return false;
}

ViewWord parse_view_word(const PictureKind& kind, std::string_view arguments) {
    ViewWord word;
    word.kind = &kind;
    const std::string_view form = argument_form(kind.arguments);
    if (!read_arguments(word, arguments))
        fail(ErrorCode::wrong_use, "--export {}: expected {}{}{}, not '{}'", kind.name, kind.name,
             form.empty() ? "" : ":", form, shown_text(arguments));
    if (kind.arguments == PictureArguments::measure && curve_index(arguments) < 0) {
        std::vector<std::string_view> known;
        for (const CurveKind& curve : curve_kinds()) known.push_back(curve.measure);
        fail(ErrorCode::wrong_use, "--export {}:{}: no such measure; one of {}", kind.name,
             shown_text(arguments), fmt::join(known, ", "));
    }
    return word;
}

}  // namespace

std::vector<ViewWord> take_view_words(std::string& list) {
    std::vector<ViewWord> words;
    std::string rest;
    std::string_view left = list;
    while (!left.empty()) {
        const std::size_t comma = std::min(left.find(','), left.size());
        std::string_view one = left.substr(0, comma);
        left.remove_prefix(std::min(comma + 1, left.size()));
        while (one.starts_with(' ')) one.remove_prefix(1);
        const std::size_t colon = std::min(one.find(':'), one.size());
        if (const PictureKind* kind = find_picture(one.substr(0, colon)))
            words.push_back(parse_view_word(*kind, one.substr(std::min(colon + 1, one.size()))));
        else
            rest += (rest.empty() ? "" : ",") + std::string(one);
    }
    list = rest;
    return words;
}

std::string format_view_word(const ViewWord& word) {
    const std::string name(word.kind->name);
    switch (word.kind->arguments) {
        case PictureArguments::none:
            return name;
        case PictureArguments::two_lanes:
            return fmt::format("{}:{}-{}", name, word.a, word.b);
        case PictureArguments::some_lanes:
            return fmt::format("{}{}{}", name, word.lanes.empty() ? "" : ":", fmt::join(word.lanes, "+"));
        case PictureArguments::positions:
            return fmt::format("{}:{}", name, fmt::join(word.positions, "+"));
        case PictureArguments::span:
            if (!word.positions.empty())
                return fmt::format("{}:{}..{}", name, word.positions.front(), word.positions.back());
            break;
        case PictureArguments::measure:
            break;
    }
    return name + ":" + word.words;
}

std::vector<std::string_view> view_names() {
    std::vector<std::string_view> names;
    for (const PictureKind& kind : picture_kinds()) names.push_back(kind.name);
    return names;
}

std::string view_word_list() {
    std::string list;
    for (const PictureKind& kind : picture_kinds()) {
        const std::string_view form = argument_form(kind.arguments);
        list += fmt::format("{}{}{}{}", list.empty() ? "" : ", ", kind.name, form.empty() ? "" : ":", form);
    }
    return list;
}

std::string format_look(const ViewState& view) {
    const ViewState usual;
    std::vector<std::string> parts;
    if (view.colors != usual.colors) parts.emplace_back(colormap_name(view.colors));
    const RangeChoice& range = view.range();
    if (!range.logarithmic) parts.emplace_back("linear");
    if (!range.automatic)
        parts.push_back(fmt::format("{}..{}", range.low, range.high));
    else if (!range.sinks_count)
        parts.emplace_back("no-sinks");
    if (range.gamma != 1) parts.push_back(fmt::format("gamma={}", range.gamma));
    if (!view.marks_nan) parts.emplace_back("no-nan");
    if (view.marks_clips) parts.emplace_back("clips");
    return fmt::format("{}", fmt::join(parts, ","));
}

Background take_background(std::string& look) {
    Background background = Background::light;
    std::string rest;
    std::string_view left = look;
    while (!left.empty()) {
        const std::size_t comma = std::min(left.find(','), left.size());
        const std::string_view part = left.substr(0, comma);
        left.remove_prefix(std::min(comma + 1, left.size()));
        if (part == "dark" || part == "light")
            background = part == "dark" ? Background::dark : Background::light;
        else
            rest += (rest.empty() ? "" : ",") + std::string(part);
    }
    look = rest;
    return background;
}

void parse_look(std::string_view look, ViewState& view) {
    RangeChoice range;
    while (!look.empty()) {
        const std::size_t comma = std::min(look.find(','), look.size());
        const std::string_view part = look.substr(0, comma);
        look.remove_prefix(std::min(comma + 1, look.size()));
        const std::size_t dots = part.find("..");
        if (const auto map = colormap_from_name(part)) {
            view.colors = *map;
        } else if (part == "linear") {
            range.logarithmic = false;
        } else if (part == "no-sinks") {
            range.sinks_count = false;
        } else if (part == "no-nan") {
            view.marks_nan = false;
        } else if (part == "clips") {
            view.marks_clips = true;
        } else if (part.starts_with("gamma=")) {
            range.gamma = read_number("--look: gamma", part.substr(6), 0.2f, 5.0f);
        } else if (dots != std::string_view::npos) {
            range.automatic = false;
            range.low = read_number("--look: LOW..HIGH", part.substr(0, dots), 0.0f);
            range.high = read_number("--look: LOW..HIGH", part.substr(dots + 2), 0.0f);
            if (!(range.low < range.high))
                fail(ErrorCode::wrong_use, "--look: '{}' does not ascend; write LOW..HIGH", part);
            if (std::fpclassify(range.low) == FP_SUBNORMAL || std::fpclassify(range.high) == FP_SUBNORMAL)
                fail(ErrorCode::wrong_use,
                     "--look: '{}' is too near to 0 for a scale; write 0 or {:.2g} and more", part,
                     std::numeric_limits<float>::min());
        } else {
            fail(ErrorCode::wrong_use,
                 "--look: '{}' is unknown; dark, a colour map, linear, LOW..HIGH, gamma=G, no-sinks, no-nan "
                 "or clips",
                 shown_text(part));
        }
    }
    view.attention_range = view.score_range = range;
}

}  // namespace keyhole
