#include "app/study/head_budgets.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace keyhole {

namespace {

/// Shares whole tokens in proportion to weights, each at most its room. Returns what each gets.
std::vector<int> shared_out(std::vector<double> weights, std::vector<int> room, std::int64_t tokens) {
    std::vector<int> given(weights.size(), 0);
    while (tokens > 0) {
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        if (!(sum > 0)) break;
        // Heads that cannot take their share are filled first: the others share the rest anew.
        std::int64_t filled = 0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            if (weights[i] <= 0 || weights[i] / sum * static_cast<double>(tokens) < room[i]) continue;
            given[i] += room[i];
            filled += room[i];
            weights[i] = 0;
        }
        tokens -= filled;
        if (filled > 0) continue;
        std::vector<std::pair<double, std::size_t>> remainders;
        std::int64_t left = tokens;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            if (weights[i] <= 0) continue;
            const double share = weights[i] / sum * static_cast<double>(tokens), whole = std::floor(share);
            given[i] += static_cast<int>(whole);
            left -= static_cast<std::int64_t>(whole);
            remainders.emplace_back(whole - share, i);  // the largest remainder first
        }
        std::sort(remainders.begin(), remainders.end());
        for (std::size_t k = 0; k < remainders.size() && left > 0; ++k, --left) ++given[remainders[k].second];
        return given;
    }
    return given;
}

}  // namespace

std::vector<int> budgets_by_gain(std::span<const double> gains, int budget, int rest, int context) {
    KH_ASSERT(rest >= 1 && rest <= budget && budget <= context);
    if (std::none_of(gains.begin(), gains.end(), [](double gain) { return gain > 0; }))
        return std::vector<int>(gains.size(), budget);
    std::vector<double> weights;
    for (const double gain : gains) weights.push_back(std::max(gain, 0.0));
    const std::int64_t pool = std::ssize(gains) * (std::int64_t{budget} - rest);
    std::vector<int> tokens =
        shared_out(std::move(weights), std::vector<int>(gains.size(), context - rest), pool);
    for (int& n : tokens) n += rest;
    // Where few heads gain, they are full before the pool is empty: the others share what is left evenly.
    std::int64_t left = std::ssize(gains) * std::int64_t{budget} -
                        std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
    while (left > 0) {
        std::int64_t n_open = std::count_if(tokens.begin(), tokens.end(), [&](int n) { return n < context; });
        for (int& n : tokens) {
            if (n >= context || left == 0) continue;
            const auto more = static_cast<int>(
                std::min<std::int64_t>(context - n, std::max<std::int64_t>(1, left / n_open)));
            n += more;
            left -= more;
            --n_open;
        }
    }
    return tokens;
}

LaneSpec lane_with_tokens_by_part(const LaneSpec& lane, std::span<const CachePart> parts,
                                  std::span<const int> tokens, int context) {
    std::map<int, std::string> heads;  // by budget
    for (std::size_t i = 0; i < parts.size(); ++i) {
        std::string& list = heads[std::min(tokens[i], context)];
        list += (list.empty() ? "" : ",") + part_name(parts[i]);
    }
    std::string items;
    for (const auto& [n, list] : heads)
        items += fmt::format("{}budget@{}={}", items.empty() ? "" : ",", list,
                             n == context ? "all" : std::to_string(n));
    return changed_lane_spec(lane, items);
}

namespace {

double mean_nats(const std::vector<Outcome>& outcomes) {
    double sum = 0;
    for (const Outcome& outcome : outcomes) sum += outcome.nats;
    return outcomes.empty() ? 0 : sum / static_cast<double>(outcomes.size());
}

double share_right(const std::vector<Outcome>& outcomes) {
    const auto n = std::ranges::count_if(outcomes, [](const Outcome& outcome) { return outcome.right; });
    return outcomes.empty() ? 0 : static_cast<double>(n) / static_cast<double>(outcomes.size());
}

}  // namespace

std::vector<ChosenPart> choose_one_by_one(const LaneSpec& lane, std::span<const CachePart> parts, int n,
                                          int rest, RankBy by, const AskLanes& ask) {
    std::vector<CachePart> left(parts.begin(), parts.end()), taken;
    std::vector<ChosenPart> chosen;
    LaneSpec before = changed_lane_spec(lane, fmt::format("budget={}", rest));
    while (std::ssize(chosen) < n && !left.empty()) {
        std::vector<LaneSpec> lanes = {before};
        for (const CachePart& part : left) {
            std::vector<CachePart> with = taken;
            with.push_back(part);
            lanes.push_back(lane_with_whole_parts(lane, with, rest));
        }
        const std::vector<std::vector<Outcome>> outcomes = ask(lanes);
        const auto rank_of = [&](std::size_t i) {
            return std::pair(by == RankBy::right ? share_right(outcomes[i]) : 0.0, -mean_nats(outcomes[i]));
        };
        std::size_t best = 1;
        for (std::size_t i = 2; i < lanes.size(); ++i)
            if (rank_of(i) > rank_of(best)) best = i;
        chosen.push_back({left[best - 1], mean_nats(outcomes[0]) - mean_nats(outcomes[best]),
                          share_right(outcomes[best])});
        taken.push_back(left[best - 1]);
        before = lanes[best];
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(best) - 1);
    }
    return chosen;
}

std::string chosen_text(std::span<const ChosenPart> chosen) {
    std::string text = fmt::format(
        "Chosen one by one, each measured beside those above it:\n{:>4} {:<10} {:>8} "
        "{:>8}\n",
        "", "part", "nats", "right %");
    int i = 0;
    for (const ChosenPart& one : chosen)
        text += fmt::format("{:>4} {:<10} {:>+8.3f} {:>8.1f}\n", ++i, part_name(one.part), one.nats,
                            100 * one.right);
    return text;
}

HeadTable head_table(const KvLayout& layout, std::span<const CachePart> parts, std::span<const int> tokens,
                     int context) {
    HeadTable table;
    for (int layer = 0; layer < layout.n_layers(); ++layer)
        if (!layout.owns(layer)) return {};
    table.n_columns = layout.first_of_layer(1) - layout.first_of_layer(0);
    table.cells.resize(to_index(layout.n_layers() * table.n_columns));
    for (std::size_t i = 0; i < parts.size(); ++i)
        for (int g = 0; g < table.n_columns; ++g) {
            if (parts[i].kv_head >= 0 && parts[i].kv_head != g) continue;
            table.cells[to_index(parts[i].layer * table.n_columns + g)] =
                tokens[i] >= context ? HeadBudget{HeadBudget::Unit::all, 0}
                                     : HeadBudget{HeadBudget::Unit::tokens, static_cast<double>(tokens[i])};
        }
    return table;
}

std::string duo_text(const KvLayout& layout, const Attribution& found) {
    double most = 0;
    for (const PartEffect& e : found.effects) most = std::max(most, e.nats.value);
    std::string text;
    for (int layer = 0; layer < layout.n_layers(); ++layer) {
        const int owner = layout.owner_of_layer(layer);
        const int n = layout.last_read(layer) - layout.first_read(layer);
        for (int g = 0; g < n; ++g) {
            double share = 0;
            for (const PartEffect& e : found.effects)
                if (e.part.layer == owner && (e.part.kv_head < 0 || e.part.kv_head == g) && most > 0)
                    share = std::max(0.0, e.nats.value) / most;
            text += fmt::format("{}{:.4e}", g == 0 ? "" : "\t", share);
        }
        text += "\n";
    }
    return text;
}

std::string duo_config_text(int sinks, int recent) {
    return nlohmann::ordered_json{{"sink_size", sinks}, {"recent_size", recent}}.dump(2) + "\n";
}

std::string headkv_text(const Attribution& found) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < found.effects.size(); ++i) {
        const CachePart& part = found.effects[i].part;
        std::vector<double> scores;
        for (const double gain : found.gains[i]) scores.push_back(std::max(gain, 0.0));
        for (int head = part.first_reader; head < part.first_reader + part.n_readers; ++head)
            json[fmt::format("{}-{}", part.layer, head)] = scores;
    }
    return json.dump() + "\n";
}

}  // namespace keyhole
