#include "app/view/page_numbers.h"

#include "app/view/deflate.h"
#include "app/view/number_text.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/base64.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

namespace keyhole {

namespace {

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

/// What a value costs when it is compressed, in bytes; measured on SmolLM2-135M and the demo model.
constexpr double kAttentionBytes = 1.55, kScoreBytes = 2.3, kRowBytes = 6;

std::size_t to_size(double value) {
    return static_cast<std::size_t>(value);
}

/// Returns the heads of which a lane has records, for add_rows(): its KV heads.
int kv_head_of(const RunHistory& history, int lane, int head) {
    const KvLayout& layout = history.layout(lane);
    return layout.kv_head_from_head(head / layout.n_heads(), head % layout.n_heads());
}

bool evicts(const RunHistory& history, int lane) {
    const RunHistory::Lane& of = history.lanes()[to_index(lane)];
    const LaneRecord* record = history.lane_record(of.last_row, lane);
    return record != nullptr && record->info->policy.evicts();
}

/// Returns the rows in the order in which they tell most: those of the answers, the last one, then the others
/// ever more closely.
std::vector<int> telling_rows(const RunHistory& history, int first_answer_row, int last_answer_row) {
    const int first = history.steps().front()->row, last = history.last_row();
    std::vector<int> rows;
    std::vector<bool> has(to_index(last - first) + 1, false);
    const auto add = [&](int row) {
        if (row < first || row > last || has[to_index(row - first)]) return;
        has[to_index(row - first)] = true;
        rows.push_back(row);
    };
    for (int row = first_answer_row; row <= last_answer_row; ++row) add(row);
    add(last);
    for (int stride = static_cast<int>(std::bit_floor(static_cast<unsigned>(last - first + 1))); stride > 0;
         stride /= 2)
        for (int row = first; row <= last; row += stride) add(row);
    return rows;
}

}  // namespace

void PageNumbers::add_planes(const std::string& name, std::string_view type, const void* values,
                             std::size_t count, std::size_t width) {
    sections_.push_back({name, std::string(type), bytes_.size(), count});
    const auto* from = static_cast<const std::byte*>(values);
    bytes_.reserve(bytes_.size() + count * width);
    for (std::size_t plane = 0; plane < width; ++plane) {
        const std::size_t byte = std::endian::native == std::endian::little ? plane : width - 1 - plane;
        for (std::size_t i = 0; i < count; ++i) bytes_.push_back(from[i * width + byte]);
    }
}

void PageNumbers::add(const std::string& name, std::span<const std::int32_t> values) {
    add_planes(name, "i32", values.data(), values.size(), 4);
}
void PageNumbers::add(const std::string& name, std::span<const float> values) {
    add_planes(name, "f32", values.data(), values.size(), 4);
}
void PageNumbers::add(const std::string& name, std::span<const std::uint16_t> values) {
    add_planes(name, "u16", values.data(), values.size(), 2);
}
void PageNumbers::add(const std::string& name, std::span<const std::uint8_t> values) {
    add_planes(name, "u8", values.data(), values.size(), 1);
}
void PageNumbers::add_halves(const std::string& name, std::span<const std::uint16_t> values) {
    add_planes(name, "f16", values.data(), values.size(), 2);
}

std::string PageNumbers::directory() const {
    nlohmann::json out = nlohmann::json::object();
    for (const Section& section : sections_)
        out[section.name] = {{"at", section.at}, {"count", section.count}, {"type", section.type}};
    return out.dump();
}

std::string PageNumbers::text() const {
    return base64(deflate_bytes(bytes_));
}

std::uint16_t shortest_half(std::uint16_t bits) {
    static const auto table = [] {
        std::vector<std::uint16_t> made(0x7c00);
        for (std::uint16_t half = 0; half < 0x7c00; ++half) {
            const std::string text = number_text(double(float_from_fp16(half)));
            made[half] = half;
            for (int dropped = 9; dropped > 0 && made[half] == half; --dropped) {
                const int step = 1 << dropped, near = (half + step / 2) / step * step;
                if (near != half && near < 0x7c00 &&
                    number_text(double(float_from_fp16(static_cast<std::uint16_t>(near)))) == text)
                    made[half] = static_cast<std::uint16_t>(near);
            }
        }
        return made;
    }();
    const std::uint16_t sign = bits & 0x8000u, size = bits & 0x7fffu;
    return size < 0x7c00 ? static_cast<std::uint16_t>(sign | table[size]) : bits;
}

float shortest_float(float value) {
    if (!std::isfinite(value) || value == 0) return value;
    const std::string text = number_text(double(value));
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int dropped = 16; dropped > 0; dropped -= 2) {
        const std::uint32_t step = 1u << dropped;
        const auto near = std::bit_cast<float>((bits + step / 2) / step * step);
        if (std::isfinite(near) && number_text(double(near)) == text) return near;
    }
    return value;
}

PageRows page_rows(const RunHistory& history, const std::vector<int>& lanes, const std::vector<int>& telling,
                   int first_answer_row, int last_answer_row) {
    PageRows out;
    out.lanes = lanes;
    const int n_heads = history.run().config.n_heads;
    out.largest.assign(lanes.size(), std::vector<float>(telling.size(), 0));
    std::vector<std::vector<double>> cost(lanes.size());  // [lane][row - first] of one head's row
    const int first = history.steps().front()->row;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        cost[i].assign(history.steps().size(), 0);
        const double n_kv = history.layout(lanes[i]).n_kv_heads();
        const double score = evicts(history, lanes[i]) ? kScoreBytes * n_kv / double(telling.size()) : 0;
        for (const auto& step : history.steps()) {
            const bool known = attention_values_of_all(
                history, lanes[i], step->row, [&](int layer, int head, std::span<const float> values) {
                    float& most = out.largest[i][to_index(layer * n_heads + head)];
                    for (const float value : values)
                        if (std::isfinite(value)) most = std::max(most, value);
                });
            const LaneRecord* record = history.lane_record(step->row, lanes[i]);
            if (!known || record == nullptr) continue;
            const double attended = double(record->attended_tokens) / n_kv;
            cost[i][to_index(step->row - first)] =
                attended * (kAttentionBytes + score) + kRowBytes + 0.02 * step->row;
        }
    }
    const auto add = [&](int row, int head) {
        for (std::size_t i = 0; i < lanes.size(); ++i)
            if (const double bytes = cost[i][to_index(row - first)]; bytes > 0) {
                out.order.push_back({static_cast<int>(i), row, head});
                out.most_bytes.push_back(to_size(bytes));
            }
    };
    // The answers in the most telling head, then all heads where they begin, then the answers in all heads,
    // then the other rows.
    const std::vector<int> rows = telling_rows(history, first_answer_row, last_answer_row);
    const auto n_answer = std::min<std::size_t>(
        static_cast<std::size_t>(std::max(last_answer_row - first_answer_row + 1, 1)), rows.size());
    for (std::size_t r = 0; r < n_answer; ++r) add(rows[r], telling.front());
    for (std::size_t h = 1; h < telling.size(); ++h) add(rows.front(), telling[h]);
    for (std::size_t h = 1; h < telling.size(); ++h)
        for (std::size_t r = 1; r < n_answer; ++r) add(rows[r], telling[h]);
    for (std::size_t r = n_answer; r < rows.size(); ++r)
        for (const int head : telling) add(rows[r], head);
    return out;
}

void add_rows(PageNumbers& numbers, const RunHistory& history, const PageRows& rows, std::size_t n) {
    struct Of {
        std::vector<std::int32_t> units, score_units;
        std::vector<std::uint16_t> halves;
        std::vector<float> scores;
    };
    std::vector<Of> of(rows.lanes.size());
    std::vector<HeadRowPlace> chosen(rows.order.begin(), rows.order.begin() + static_cast<std::ptrdiff_t>(n));
    // Neighbouring rows of a head are alike.
    std::ranges::sort(chosen, [](const HeadRowPlace& a, const HeadRowPlace& b) {
        return std::tie(a.lane, a.head, a.row) < std::tie(b.lane, b.head, b.row);
    });
    std::vector<float> values;
    std::set<std::tuple<int, int, int>> scored;
    for (const HeadRowPlace& place : chosen) {
        const int lane = rows.lanes[to_index(place.lane)], n_heads = history.run().config.n_heads;
        Of& its = of[to_index(place.lane)];
        values.assign(to_index(place.row) + 1, kNothing);
        if (!attention_values(history, lane, place.row, place.head / n_heads, place.head % n_heads, values))
            continue;
        its.units.insert(its.units.end(), {place.row, place.head});
        for (const float value : values) its.halves.push_back(shortest_half(fp16_from_float(value)));
        const int g = kv_head_of(history, lane_of_row(history, lane, place.row), place.head);
        if (!evicts(history, lane) || !scored.insert({place.lane, place.row, g}).second) continue;
        values.assign(to_index(place.row) + 1, kNothing);
        if (!score_values(history, lane, place.row, g, values)) continue;
        its.score_units.insert(its.score_units.end(), {place.row, g});
        for (const float value : values) its.scores.push_back(shortest_float(value));
    }
    for (std::size_t i = 0; i < of.size(); ++i) {
        const std::string name = fmt::format("lane{}.", i);
        numbers.add(name + "attention.units", of[i].units);
        numbers.add_halves(name + "attention", of[i].halves);
        numbers.add(name + "scores.units", of[i].score_units);
        numbers.add(name + "scores", of[i].scores);
    }
}

void add_evictions(PageNumbers& numbers, const RunHistory& history, const std::vector<int>& lanes) {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const int n_kv = history.layout(lanes[i]).n_kv_heads();
        std::vector<std::int32_t> evicted;
        for (int g = 0; g < n_kv; ++g)
            for (int p = 0; p < history.n_positions(); ++p)
                evicted.push_back(history.evicted_at(lanes[i], g, p));
        numbers.add(fmt::format("lane{}.evicted_at", i), evicted);
        if (!evicts(history, lanes[i])) continue;
        std::vector<float> thresholds;
        for (const auto& step : history.steps())
            for (int g = 0; g < n_kv; ++g)
                thresholds.push_back(shortest_float(threshold_at(history, lanes[i], step->row, g)));
        numbers.add(fmt::format("lane{}.thresholds", i), thresholds);
    }
}

PromptBlocks add_prompt(PageNumbers& numbers, const std::string& name, const PromptRows& image, int n_heads) {
    constexpr int kMostCodes = 110'000;
    PromptBlocks out;
    out.blocks = 1;
    for (const int blocks : {64, 48, 32, 24, 16, 8})
        if (n_heads * blocks * (blocks + 1) / 2 <= kMostCodes) {
            out.blocks = blocks;
            break;
        }
    const int factor = std::max((image.size + out.blocks - 1) / out.blocks, 1);
    out.blocks = (image.size + factor - 1) / factor;
    out.side = image.reduction * factor;
    const auto size = to_index(image.size), triangle = to_index(out.blocks) * (to_index(out.blocks) + 1) / 2;
    std::vector<std::uint8_t> codes(to_index(n_heads) * triangle, 0);
    for (std::size_t head = 0; head < to_index(n_heads); ++head)
        for (std::size_t y = 0; y < size; ++y)
            for (std::size_t x = 0; x <= y; ++x) {
                const float value = float_from_fp16(image.attention[(head * size + y) * size + x]);
                if (!(value > 0)) continue;
                const float level = 1 + 254 * (std::log10(value) + 6) / 6;
                const std::size_t by = y / to_index(factor), bx = x / to_index(factor);
                std::uint8_t& code = codes[head * triangle + by * (by + 1) / 2 + bx];
                code =
                    std::max(code, static_cast<std::uint8_t>(std::lround(std::clamp(level, 1.0f, 255.0f))));
            }
    numbers.add(name, codes);
    return out;
}

std::vector<float> largest_of_prompt(const PromptRows& image, int n_heads) {
    const std::size_t plane = to_index(image.size) * to_index(image.size);
    std::vector<float> largest(to_index(n_heads), 0);
    for (std::size_t head = 0; head < largest.size(); ++head)
        for (std::size_t i = head * plane; i < (head + 1) * plane; ++i)
            if (const float value = float_from_fp16(image.attention[i]); std::isfinite(value))
                largest[head] = std::max(largest[head], value);
    return largest;
}

}  // namespace keyhole
