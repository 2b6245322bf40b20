#include "app/study/attribution.h"

#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/sign_flips.h"
#include "engine/figure/drawing.h"
#include "engine/figure/head_map.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace keyhole {

namespace {

/// What parts are called in sentences and in the table's header.
std::string_view kind_word(PartKind kind) {
    switch (kind) {
        case PartKind::head:
            return "KV head";
        case PartKind::query_head:
            return "query head";
        case PartKind::layer:
            return "layer";
        case PartKind::group:
            return "group";
        case PartKind::token:
            break;
    }
    return "tokens";
}

bool is_of_tokens(PartKind kind) {
    return kind == PartKind::group || kind == PartKind::token;
}

std::string budget_of(const LaneSpec& lane) {
    for (const LaneSetting& setting : lane_settings(lane))
        if (setting.key == "budget") return setting.value;
    return "all";
}

std::string interval_text(const Estimate& e, double times, int digits) {
    if (!std::isfinite(e.interval.low)) return "";
    return fmt::format("{:+.{}f} .. {:+.{}f}", times * e.interval.low, digits, times * e.interval.high,
                       digits);
}

/// Returns " (low .. high)" in nats; empty where one question gives no interval.
std::string interval_in_brackets(const Estimate& e) {
    const std::string text = interval_text(e, 1, 3);
    return text.empty() ? "" : fmt::format(" ({})", text);
}

nlohmann::json part_estimate_json(const Estimate& e) {
    const auto number = [](double value) {
        return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
    };
    return {{"value", number(e.value)}, {"interval", {number(e.interval.low), number(e.interval.high)}}};
}

/// Returns by how much KL to the full cache falls, question by question.
Estimate kl_saved(const std::vector<Outcome>& worse, const std::vector<Outcome>& better) {
    Gains gains;
    for (std::size_t q = 0; q < worse.size(); ++q) gains.push_back(worse[q].kl - better[q].kl);
    return mean_estimate(gains);
}

Gains nats_saved(const std::vector<Outcome>& worse, const std::vector<Outcome>& better) {
    Gains gains;
    for (std::size_t q = 0; q < worse.size(); ++q) gains.push_back(worse[q].nats - better[q].nats);
    return gains;
}

/// Returns a part's place among those of its layer.
std::size_t map_column(const CachePart& part) {
    return to_index(std::max(part.query_head >= 0 ? part.query_head : part.kv_head, 0));
}

/// Returns words for a cell of a table.
std::string short_words(const std::string& words) {
    constexpr std::size_t kMost = 30;
    const std::string text = printable_text(words);
    if (text.size() <= kMost) return text;
    std::size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80) --end;  // whole characters
    return text.substr(0, end) + "...";
}

/// Returns the query heads that read a part, the KV head that a query head reads, or the words of its tokens,
/// short enough for a table.
std::string readers_text(const CachePart& part) {
    if (!part.words.empty()) return part.tokens ? short_words(part.words) : "";
    if (part.query_head >= 0) return fmt::format("G{}", part.kv_head);
    return part.n_readers == 1
               ? fmt::format("H{}", part.first_reader)
               : fmt::format("H{}-{}", part.first_reader, part.first_reader + part.n_readers - 1);
}

}  // namespace

namespace {

constexpr std::array<std::string_view, 5> kPartKinds = {"head", "query-head", "layer", "group", "token"};

}  // namespace

std::string_view part_kind_word(PartKind kind) {
    return kPartKinds[to_index(kind)];
}

std::optional<PartKind> part_kind_from_word(std::string_view word) {
    const auto found = std::ranges::find(kPartKinds, word);
    return found == kPartKinds.end() ? std::nullopt
                                     : std::optional(static_cast<PartKind>(found - kPartKinds.begin()));
}

std::vector<CachePart> cache_parts(const KvLayout& layout, PartKind kind) {
    std::vector<CachePart> parts;
    for (int layer = 0; layer < layout.n_layers(); ++layer) {
        if (kind == PartKind::query_head) {
            for (int h = 0; h < layout.n_heads(); ++h)
                parts.push_back(
                    {layer, layout.kv_head(layout.kv_head_from_head(layer, h)).index, h, 1, {}, {}, h});
            continue;
        }
        if (!layout.owns(layer)) continue;
        if (kind == PartKind::layer) {
            parts.push_back({layer, -1, 0, layout.n_heads()});
            continue;
        }
        for (int g = layout.first_of_layer(layer); g < layout.first_of_layer(layer + 1); ++g) {
            const KvHead& head = layout.kv_head(g);
            const auto of_layer = std::count_if(head.readers.begin(), head.readers.end(),
                                                [&](const HeadRef& reader) { return reader.layer == layer; });
            parts.push_back({layer, head.index, head.readers.front().head, static_cast<int>(of_layer)});
        }
    }
    return parts;
}

std::vector<CachePart> token_parts(const Tokenizer& tokenizer, std::span<const int> prompt, int chunk) {
    std::vector<CachePart> parts;
    const auto n = static_cast<int>(prompt.size());
    for (int first = 0; first < n; first += chunk) {
        CachePart& part = parts.emplace_back();
        part.tokens = TokenRange{first, std::min(first + chunk, n) - 1};
        for (int p = first; p <= part.tokens->last; ++p)
            part.words += tokenizer.token_bytes(prompt[to_index(p)]);
    }
    return parts;
}

std::vector<CachePart> group_parts(bool has_answer) {
    std::vector<CachePart> parts;
    for (const char* name : {"sinks", "recent", "answer"})
        if (has_answer || std::string_view(name) != "answer") parts.emplace_back().words = name;
    return parts;
}

TokenRange group_tokens(const CachePart& group, int n_prompt, const TokenRange& answer) {
    if (group.words == "answer") return answer;
    if (group.words == "sinks") return {0, std::min(kGroupSinks, n_prompt) - 1};
    return {std::max(0, n_prompt - kGroupRecent), n_prompt - 1};
}

LaneSpec lane_with_tokens(const LaneSpec& lane, const TokenRange& tokens) {
    const Amount& budget = lane.policy.budget;
    const std::vector<std::string> protects = lane.policy.formula_texts(Override::Field::protect);
    if (budget.unit != Amount::Unit::tokens || protects != std::vector<std::string>{"none"})
        fail(ErrorCode::wrong_use,
             "the lane '{}' cannot be given tokens back: it needs a budget in tokens, such as budget=64, and "
             "no protect",
             format_lane_spec(lane));
    // The newest tokens stay as many as they were, where they are a share of the budget.
    const int recent = resolve(lane.policy, ResolvedPolicy::kUnlimited / 2, 1).recent;
    return changed_lane_spec(
        lane, fmt::format("budget={:.0f},recent={},protect={}..{}", budget.value + tokens.size(), recent,
                          tokens.first, tokens.last));
}

LaneSpec lane_by_query_head(const LaneSpec& lane) {
    using Kind = KvSharing::Kind;
    if (lane.sharing.kind != Kind::own && lane.sharing.kind != Kind::mha)
        fail(ErrorCode::wrong_use,
             "--by query-head gives each query head a KV head of its own, and the lane '{}' shares them in "
             "another way; leave out its kv",
             format_lane_spec(lane));
    return changed_lane_spec(lane, "kv=mha");
}

std::string part_name(const CachePart& part) {
    if (part.tokens) return fmt::format("{}..{}", part.tokens->first, part.tokens->last);
    if (!part.words.empty()) return part.words;
    if (part.query_head >= 0) return fmt::format("L{}.H{}", part.layer, part.query_head);
    return part.kv_head < 0 ? fmt::format("L{}", part.layer)
                            : fmt::format("L{}.G{}", part.layer, part.kv_head);
}

LaneSpec start_lane(const LaneSpec& lane, Intervention intervention) {
    if (budget_of(lane) == "all")
        fail(ErrorCode::wrong_use,
             "the lane '{}' evicts nothing; give one with a budget, such as h2o:budget=64",
             format_lane_spec(lane));
    if (intervention == Intervention::give_back) return lane;
    LaneSpec whole = changed_lane_spec(lane, "budget=all");
    whole.policy.heads = {};
    std::erase_if(whole.policy.overrides,
                  [](const Override& o) { return o.field == Override::Field::budget; });
    return whole;
}

LaneSpec lane_with_part(const LaneSpec& lane, const CachePart& part, Intervention intervention) {
    return changed_lane_spec(start_lane(lane, intervention),
                             fmt::format("budget@{}={}", part_name(part),
                                         intervention == Intervention::give_back ? "all" : budget_of(lane)));
}

Attribution attribute(const LaneSpec& lane, PartKind kind, Intervention intervention,
                      std::span<const CachePart> parts, std::span<const std::vector<Outcome>> outcomes) {
    const std::vector<Outcome>&full = outcomes[0], &evicting = outcomes[1];
    Attribution found{kind,
                      intervention,
                      lane,
                      mean_estimate(nats_saved(evicting, full)),
                      score_lane(full, full).accuracy,
                      score_lane(evicting, full).accuracy,
                      {},
                      static_cast<int>(full.size()),
                      {}};
    std::vector<Gains>& gains = found.gains;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::vector<Outcome>& with_part = outcomes[i + 2];
        const bool gives = intervention == Intervention::give_back;
        const std::vector<Outcome>&worse = gives ? evicting : with_part, &better = gives ? with_part : full;
        gains.push_back(nats_saved(worse, better));
        found.effects.push_back({parts[i], mean_estimate(gains.back()),
                                 score_lane(better, worse).accuracy_difference, kl_saved(worse, better)});
    }
    const SignFlips flips = sign_flips(gains);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        found.effects[i].p = flips.comparisons[i].p;
        found.effects[i].is_sure = flips.n_telling >= kLeastSamples && flips.comparisons[i].p <= kSureP;
    }
    return found;
}

RankBy rank_from_word(std::string_view word) {
    return word == "right" ? RankBy::right : word == "kl" ? RankBy::kl : RankBy::nats;
}

std::vector<std::size_t> ranked(const Attribution& found, RankBy by) {
    std::vector<std::size_t> order(found.effects.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const PartEffect &one = found.effects[a], &other = found.effects[b];
        // Answers are few numbers: among equal ones the nats decide.
        if (by == RankBy::right && one.right.value != other.right.value)
            return one.right.value > other.right.value;
        if (by == RankBy::kl && one.kl.value != other.kl.value) return one.kl.value > other.kl.value;
        return one.nats.value > other.nats.value;
    });
    return order;
}

std::string attribution_text(const Attribution& found, bool is_task, std::size_t most, RankBy by) {
    const bool gives = found.intervention == Intervention::give_back;
    const std::string_view kind = kind_word(found.kind);
    std::string text = fmt::format("{}: eviction costs {:.3f} nats an answer{}", format_lane_spec(found.lane),
                                   found.lost.value, interval_in_brackets(found.lost));
    if (is_task)
        text += fmt::format("; right {:.1f} %, the full cache {:.1f} %", 100 * found.lane_right.value,
                            100 * found.full_right.value);
    const bool of_tokens = is_of_tokens(found.kind);
    const std::string lines = of_tokens ? "these tokens stay in all heads, beside the budget"
                                        : fmt::format("one {} {}", kind,
                                                      gives ? "keeps all tokens, the rest evicts"
                                                            : "evicts, the rest keeps all tokens");
    text += fmt::format("\n{}, {} question{}. Each line: {}.\n",
                        gives ? "What giving tokens back gains" : "What taking tokens costs",
                        found.n_questions, found.n_questions == 1 ? "" : "s", lines);
    const int width = found.kind == PartKind::token ? 32 : 8;
    const bool has_kl =
        std::ranges::any_of(found.effects, [](const PartEffect& e) { return std::isfinite(e.kl.value); });
    const char* beside = of_tokens ? "words" : found.kind == PartKind::query_head ? "reads" : "heads";
    text +=
        fmt::format("{:>4} {:<10} {:<{}} {:>8} {:>20} {:>8}", "", kind, beside, width, "nats", "95 %", "p");
    if (has_kl) text += fmt::format(" {:>8} {:>20}", "KL", "95 %");
    if (is_task) text += fmt::format(" {:>8} {:>16}", "right %", "95 %");
    text += "\n";
    const std::vector<std::size_t> order = ranked(found, by);
    for (std::size_t i = 0; i < std::min(most, order.size()); ++i) {
        const PartEffect& effect = found.effects[order[i]];
        text += fmt::format("{:>4} {:<10} {:<{}} {:>+8.3f} {:>20} {:>8.4f}", i + 1, part_name(effect.part),
                            readers_text(effect.part), width, effect.nats.value,
                            interval_text(effect.nats, 1, 3), effect.p);
        if (has_kl) text += fmt::format(" {:>+8.3f} {:>20}", effect.kl.value, interval_text(effect.kl, 1, 3));
        if (is_task)
            text += fmt::format(" {:>+8.1f} {:>16}", 100 * effect.right.value,
                                interval_text(effect.right, 100, 1));
        text += "\n";
    }
    const auto n_sure = std::count_if(found.effects.begin(), found.effects.end(),
                                      [](const PartEffect& e) { return e.is_sure && e.nats.value > 0; });
    return text + fmt::format("Surely above 0, corrected for all {}: {}.\n", found.effects.size(), n_sure);
}

std::string attribution_csv(const Attribution& found) {
    std::string csv =
        "part,layer,kv_head,first_query_head,query_heads,nats,nats_low,nats_high,right,right_low,right_high,"
        "kl,kl_low,kl_high,p,questions,intervention,lane,words\n";
    for (const PartEffect& e : found.effects) {
        csv += is_of_tokens(found.kind)
                   ? fmt::format("{},,,,", part_name(e.part))
                   : fmt::format("{},{},{},{},{}", part_name(e.part), e.part.layer,
                                 e.part.kv_head < 0 ? "" : std::to_string(e.part.kv_head),
                                 e.part.first_reader, e.part.n_readers);
        for (const double value :
             {e.nats.value, e.nats.interval.low, e.nats.interval.high, e.right.value, e.right.interval.low,
              e.right.interval.high, e.kl.value, e.kl.interval.low, e.kl.interval.high})
            csv += std::isfinite(value) ? fmt::format(",{:.6g}", value) : ",";
        csv += fmt::format(",{:.6g},{},{},{},{}\n", e.p, found.n_questions,
                           found.intervention == Intervention::give_back ? "give-back" : "take",
                           csv_field(format_lane_spec(found.lane)), csv_field(printable_text(e.part.words)));
    }
    return csv;
}

nlohmann::json attribution_json(const Attribution& found) {
    nlohmann::json json = {
        {"by", part_kind_word(found.kind)},
        {"lane", format_lane_spec(found.lane)},
        {"intervention", found.intervention == Intervention::give_back ? "give-back" : "take"},
        {"questions", found.n_questions},
        {"lost_nats", part_estimate_json(found.lost)},
        {"right", found.lane_right.value},
        {"right_full", found.full_right.value},
        {"parts", nlohmann::json::array()}};
    for (const std::size_t i : ranked(found)) {
        const PartEffect& e = found.effects[i];
        nlohmann::json part = {{"part", part_name(e.part)},
                               {"nats", part_estimate_json(e.nats)},
                               {"right", part_estimate_json(e.right)},
                               {"kl", part_estimate_json(e.kl)},
                               {"p", e.p},
                               {"sure", e.is_sure}};
        if (!found.gains.empty()) part["gains"] = found.gains[i];
        if (is_of_tokens(found.kind))
            part["words"] = e.part.words;
        else
            part["layer"] = e.part.layer;
        if (e.part.kv_head >= 0) part["kv_head"] = e.part.kv_head;
        if (e.part.query_head >= 0) part["query_head"] = e.part.query_head;
        if (!is_of_tokens(found.kind)) {
            part["first_query_head"] = e.part.first_reader;
            part["query_heads"] = e.part.n_readers;
        }
        json["parts"].push_back(std::move(part));
    }
    return json;
}

ValueMap attribution_map(const Attribution& found) {
    const bool gives = found.intervention == Intervention::give_back;
    ValueMap map;
    map.texts.title = gives ? "What giving tokens back gains" : "What taking tokens costs";
    map.texts.subtitle = format_lane_spec(found.lane);
    map.texts.caption = fmt::format(
        "Nats an answer over {}: one {} {}. Intervals are in attribution.csv, and in the SVG at the cell "
        "under the pointer.",
        counted(found.n_questions, "question"), kind_word(found.kind),
        gives ? "keeps all tokens while the rest evicts" : "evicts while the rest keeps all tokens");
    map.value_label = "nats";
    map.decimals = 2;
    const char* letter = found.kind == PartKind::query_head ? "H" : "G";
    const char* head_label = found.kind == PartKind::query_head ? "query head" : "KV head";
    std::vector<std::string> layers, heads;
    for (const PartEffect& e : found.effects) {
        const std::string layer = fmt::format("L{}", e.part.layer);
        if (layers.empty() || layers.back() != layer) layers.push_back(layer);
        while (heads.size() <= map_column(e.part))
            heads.push_back(found.kind == PartKind::layer ? "all"
                                                          : fmt::format("{}{}", letter, heads.size()));
    }
    const bool layers_across = layers_lie_across(layers.size(), heads.size());
    const std::size_t n_across = std::max(layers.size(), heads.size());
    map.columns = layers_across ? layers : heads;
    map.rows = layers_across ? heads : layers;
    map.column_label = layers_across ? "layer" : head_label;
    map.row_label = layers_across ? head_label : "layer";
    ValuePanel& panel = map.panels.emplace_back();
    panel.title = counted(found.n_questions, "question");
    panel.values.assign(layers.size() * heads.size(), std::nanf(""));
    panel.notes.resize(panel.values.size());
    float most = 0;
    for (const PartEffect& e : found.effects) {
        const std::size_t layer = to_index(std::ranges::find(layers, fmt::format("L{}", e.part.layer)) -
                                           layers.begin()),
                          head = map_column(e.part);
        const std::size_t at = layers_across ? head * n_across + layer : layer * n_across + head;
        panel.values[at] = static_cast<float>(e.nats.value);
        panel.notes[at] =
            fmt::format("{}: {:+.3f} nats{}", part_name(e.part), e.nats.value, interval_in_brackets(e.nats));
        most = std::max(most, std::abs(panel.values[at]));
    }
    map.scale = {Colormap::rdbu, false, true, 0, std::max(most, 1e-6f)};
    return map;
}

std::string attribution_page(const Attribution& found, const std::string& title, const std::string& made_by) {
    double most = 1e-9;
    for (const PartEffect& e : found.effects) most = std::max(most, std::abs(e.nats.value));
    std::string page = fmt::format(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n<style>\n"
        "body {{ font: 16px/1.9 serif; max-width: 46em; margin: 2em auto; padding: 0 1em; color: #111; "
        "background: #fff }}\nspan {{ padding: .15em 0; white-space: pre-wrap }}\n"
        "p.about {{ font: 14px/1.5 sans-serif }}\n</style>\n<h1>{0}</h1>\n"
        "<p class=\"about\">Each piece of the text was kept in all heads, beside the budget of {1}. Red: the "
        "answer became more likely, up to {2:.2f} nats; blue: less likely. Point at a piece for its "
        "number.</p>\n<p>",
        escape_xml(title), escape_xml(format_lane_spec(found.lane)), most);
    for (const PartEffect& e : found.effects) {
        const double share = std::abs(e.nats.value) / most;
        const char* color = e.nats.value > 0 ? "214, 39, 40" : "31, 119, 180";
        page += fmt::format(
            "<span style=\"background: rgba({}, {:.2f})\" title=\"tokens {}: {:+.3f} nats\">{}</span>", color,
            0.8 * share, part_name(e.part), e.nats.value, escape_xml(e.part.words));
    }
    return page + fmt::format("</p>\n<p class=\"about\">{}</p>\n", escape_xml(made_by));
}

int whole_parts(int n_parts, int budget, int rest, int context) {
    if (rest < 1 || rest >= budget || budget >= context)
        fail(ErrorCode::wrong_use,
             "no head can keep all {} tokens at {} tokens a head with {} in the others; needs --rest below "
             "--budget, and --budget below the context",
             context, budget, rest);
    const auto tokens = static_cast<std::int64_t>(n_parts) * (budget - rest);
    return static_cast<int>(tokens / (context - rest));
}

LaneSpec lane_with_whole_parts(const LaneSpec& lane, std::span<const CachePart> parts, int rest) {
    std::vector<CachePart> sorted(parts.begin(), parts.end());
    std::sort(sorted.begin(), sorted.end(), [](const CachePart& a, const CachePart& b) {
        return std::pair(a.layer, a.kv_head) < std::pair(b.layer, b.kv_head);
    });
    std::string heads;
    for (std::size_t i = 0; i < sorted.size();) {
        const CachePart& first = sorted[i];
        int n = 0;
        for (; i < sorted.size() && sorted[i].layer == first.layer && sorted[i].kv_head == first.kv_head + n;
             ++i)
            ++n;
        heads += heads.empty() ? "" : ",";
        heads += n > 1 ? fmt::format("L{}.G{}-{}", first.layer, first.kv_head, first.kv_head + n - 1)
                       : part_name(first);
    }
    return changed_lane_spec(lane, fmt::format("budget={},budget@{}=all", rest, heads));
}

std::vector<CachePart> other_parts(std::span<const CachePart> all, std::span<const CachePart> chosen, int n) {
    std::vector<CachePart> rest;
    for (const CachePart& part : all)
        if (std::find(chosen.begin(), chosen.end(), part) == chosen.end()) rest.push_back(part);
    std::vector<CachePart> some;
    const auto n_rest = static_cast<std::int64_t>(rest.size());
    const auto n_some = std::min<std::int64_t>(n, n_rest);
    for (std::int64_t i = 0; i < n_some; ++i)
        some.push_back(rest[to_index((2 * i + 1) * n_rest / (2 * n_some))]);
    return some;
}

}  // namespace keyhole
