#include "app/study/attribution_file.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/number.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <tuple>

namespace keyhole {

namespace {

constexpr std::size_t kMostParts = 1 << 20, kMostWords = 1 << 16;
constexpr int kMostIndex = 1 << 24;
constexpr double kMostNats = 1e9;

double number_or_nan(const JsonField& in) {
    return in.is_null() ? std::numeric_limits<double>::quiet_NaN() : in.number(-kMostNats, kMostNats);
}

Estimate read_estimate(const JsonField& in) {
    Estimate e;
    e.value = number_or_nan(in["value"]);
    e.interval = {number_or_nan(in["interval"].at(0)), number_or_nan(in["interval"].at(1))};
    return e;
}

int index_or(const JsonField& in, const char* key, int other) {
    const auto found = in.find(key);
    return found ? found->integer(0, kMostIndex) : other;
}

/// Reads "12..19".
TokenRange read_tokens(const JsonField& name) {
    const std::string& text = name.text(kMostWords);
    const std::size_t dots = std::min(text.find(".."), text.size());
    const auto first = number_from_text<int>(text.substr(0, dots), 0, kMostIndex);
    const auto last = number_from_text<int>(text.substr(std::min(dots + 2, text.size())), 0, kMostIndex);
    if (!first || !last || *last < *first) name.wanted("tokens, such as 12..19");
    return {*first, *last};
}

CachePart read_part(const JsonField& in, PartKind kind) {
    CachePart part;
    if (kind == PartKind::group || kind == PartKind::token) part.words = in["words"].text(kMostWords);
    if (kind == PartKind::token) part.tokens = read_tokens(in["part"]);
    if (kind == PartKind::group || kind == PartKind::token) return part;
    part.layer = in["layer"].integer(0, kMostIndex);
    part.kv_head = index_or(in, "kv_head", -1);
    part.query_head = index_or(in, "query_head", -1);
    part.first_reader = index_or(in, "first_query_head", 0);
    part.n_readers = index_or(in, "query_heads", 0);
    return part;
}

/// A part, and its gain in each question; empty: not known.
struct StoredPart {
    PartEffect effect;
    std::vector<double> gains;
};

StoredPart read_stored_part(const JsonField& in, PartKind kind) {
    StoredPart part;
    part.effect.part = read_part(in, kind);
    part.effect.nats = read_estimate(in["nats"]);
    part.effect.right = read_estimate(in["right"]);
    part.effect.kl = read_estimate(in["kl"]);
    part.effect.p = in["p"].number(0, 1);
    part.effect.is_sure = in["sure"].flag();
    if (const auto gains = in.find("gains"))
        for (std::size_t q = 0; q < gains->size(kMostParts); ++q)
            part.gains.push_back(gains->at(q).number(-kMostNats, kMostNats));
    return part;
}

/// Returns a part's place in the order of parts.
std::tuple<int, int, int> place_of(const StoredPart& stored) {
    const CachePart& part = stored.effect.part;
    return {part.layer, part.query_head >= 0 ? part.query_head : part.kv_head,
            part.tokens ? part.tokens->first : 0};
}

}  // namespace

StoredAttribution read_attribution(std::string_view text, std::string_view name) {
    const nlohmann::json json = parse_json(text, name);
    const JsonField in(json, name);
    StoredAttribution stored;
    Attribution& found = stored.found;
    const auto kind = part_kind_from_word(in["by"].text(kMostWords));
    if (!kind) in["by"].wanted("head, query-head, layer, group or token");
    found.kind = *kind;
    found.intervention =
        in["intervention"].text(kMostWords) == "take" ? Intervention::take : Intervention::give_back;
    try {
        found.lane = parse_stored_lane_spec(in["lane"].text(1 << 20));
    } catch (const Error& error) {
        in["lane"].bad(error.what());
    }
    found.lost = read_estimate(in["lost_nats"]);
    found.full_right.value = number_or_nan(in["right_full"]);
    found.lane_right.value = number_or_nan(in["right"]);
    found.n_questions = in["questions"].integer(0, kMostIndex);
    stored.context = in["context"].integer(0, kMostIndex);
    if (const auto asked = in.find("asked")) stored.asked = asked->text(kMostWords);
    if (const auto lane = in.find("asked_lane")) stored.lane = lane->text(1 << 20);
    const JsonField parts = in["parts"];
    std::vector<StoredPart> all;
    for (std::size_t i = 0; i < parts.size(kMostParts); ++i)
        all.push_back(read_stored_part(parts.at(i), found.kind));
    std::ranges::stable_sort(all, {}, place_of);
    const bool has_gains =
        std::ranges::none_of(all, [](const StoredPart& part) { return part.gains.empty(); });
    for (StoredPart& part : all) {
        found.effects.push_back(std::move(part.effect));
        if (has_gains) found.gains.push_back(std::move(part.gains));
    }
    return stored;
}

}  // namespace keyhole
