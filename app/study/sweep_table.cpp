#include "app/study/sweep_table.h"

#include "app/study/eval_report.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/answer_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace keyhole {

namespace {

constexpr std::array<std::string_view, 3> kFirst = {"questions", "lane", "spec"};
constexpr std::array<std::string_view, 17> kLast = {"samples",
                                                    "tokens",
                                                    "accuracy",
                                                    "accuracy_low",
                                                    "accuracy_high",
                                                    "difference",
                                                    "difference_low",
                                                    "difference_high",
                                                    "perplexity",
                                                    "perplexity_low",
                                                    "perplexity_high",
                                                    "bits_per_byte",
                                                    "nats_per_token",
                                                    "nats_difference",
                                                    "nats_difference_low",
                                                    "nats_difference_high",
                                                    "asked"};

/// Columns that came later: tables without them, or with the first four alone, are read too.
constexpr std::array<std::string_view, 8> kAdded = {
    "model",  "kv_bytes_per_token", "length", "depth", "held", "nats_per_token_low", "nats_per_token_high",
    "made_by"};
constexpr std::array<std::size_t, 4> kNumbersAdded = {0, 4, 7, kAdded.size()};

/// Two rows with equal values here measure the same thing.
const std::array<std::string, 3> kKey = {"asked", "lane", "spec"};
constexpr std::size_t kMostBytes = 256 << 20;

std::vector<std::string> columns_of(const std::vector<std::string>& keys,
                                    std::size_t n_added = kAdded.size()) {
    std::vector<std::string> columns(kFirst.begin(), kFirst.end());
    columns.insert(columns.end(), keys.begin(), keys.end());
    columns.insert(columns.end(), kLast.begin(), kLast.end());
    columns.insert(columns.end(), kAdded.begin(), kAdded.begin() + static_cast<std::ptrdiff_t>(n_added));
    return columns;
}

/// Returns the varied keys that a header names; none if it is no header of a version.
std::optional<std::vector<std::string>> keys_of(const std::vector<std::string>& columns) {
    for (const std::size_t n_added : kNumbersAdded) {
        const std::size_t n_fixed = kFirst.size() + kLast.size() + n_added;
        if (columns.size() < n_fixed) continue;
        const auto first = columns.begin() + kFirst.size();
        std::vector<std::string> keys(first, first + static_cast<std::ptrdiff_t>(columns.size() - n_fixed));
        if (columns_of(keys, n_added) == columns) return keys;
    }
    return std::nullopt;
}

}  // namespace

SweepTable::SweepTable(std::filesystem::path path) : path_(std::move(path)) {
    std::error_code error;
    if (std::filesystem::exists(path_, error)) read(read_text_file(path_, kMostBytes));
}

void SweepTable::read(std::string_view text) {
    const auto refuse = [&](std::size_t line, std::string_view why) {
        fail(ErrorCode::bad_file,
             "{}:{} is no line of a sweep's table: {}; move the file away or give another --out",
             path_.string(), line, why);
    };
    std::vector<std::string> columns;
    std::size_t number = 0;
    for (std::vector<std::string>& fields : csv_lines(text)) {
        if (++number == 1) {
            columns = std::move(fields);
            const std::optional<std::vector<std::string>> keys = keys_of(columns);
            if (!keys)
                refuse(1, fmt::format("'{}' is not the header of this version",
                                      shown_text(fmt::format("{}", fmt::join(columns, ",")))));
            keys_ = *keys;
            continue;
        }
        if (fields.size() != columns.size())
            refuse(number, fmt::format("it has {} fields, not {}", fields.size(), columns.size()));
        Row row;
        for (std::size_t i = 0; i < fields.size(); ++i)
            if (!fields[i].empty()) row[columns[i]] = std::move(fields[i]);
        rows_.push_back(std::move(row));
    }
}

void SweepTable::put(Row row) {
    const auto same = [&](const Row& known) {
        return std::all_of(kKey.begin(), kKey.end(), [&](const std::string& column) {
            const auto found = known.find(column);
            return found != known.end() && found->second == row.at(column);
        });
    };
    const auto there = std::find_if(rows_.begin(), rows_.end(), same);
    if (there == rows_.end())
        rows_.push_back(std::move(row));
    else
        *there = std::move(row);
}

void SweepTable::add(const QuestionSet& set, const std::string& asked, const GridCell& cell,
                     std::span<const Vary> varies, const LaneScore& score, const About& about) {
    Row row = {{"questions", set.name},
               {"lane", cell.lane},
               {"spec", format_lane_spec(cell.spec)},
               {"asked", asked},
               {"samples", fmt::format("{}", score.n_questions)},
               {"tokens", fmt::format("{}", score.n_tokens)}};
    for (std::size_t i = 0; i < cell.values.size(); ++i) {
        if (cell.values[i].empty()) continue;
        row[varies[i].key] = cell.values[i];
        if (std::find(keys_.begin(), keys_.end(), varies[i].key) == keys_.end())
            keys_.push_back(varies[i].key);
    }
    const auto number = [&](const std::string& column, double value) {
        if (std::isfinite(value)) row[column] = fmt::format("{:.6g}", value);
    };
    const auto estimate = [&](const std::string& column, double value, const Interval& interval) {
        number(column, value);
        number(column + "_low", interval.low);
        number(column + "_high", interval.high);
    };
    if (set.is_task) {
        estimate("accuracy", score.accuracy.value, score.accuracy.interval);
        if (!about.is_first)
            estimate("difference", score.accuracy_difference.value, score.accuracy_difference.interval);
    } else {
        estimate("perplexity", score.perplexity, perplexity_interval(score));
        number("bits_per_byte", score.bits_per_byte);
    }
    estimate("nats_per_token", score.nats.value, score.nats.interval);
    number("held", score.held);
    if (!about.is_first)
        estimate("nats_difference", score.nats_difference.value, score.nats_difference.interval);
    row["model"] = about.model;
    row["made_by"] = about.made_by;
    if (about.kv_bytes > 0) number("kv_bytes_per_token", about.kv_bytes);
    if (about.length > 0) {
        row["length"] = fmt::format("{}", about.length);
        row["depth"] = fmt::format("{}%", about.depth);
    }
    put(std::move(row));
}

void SweepTable::write() const {
    const std::vector<std::string> columns = columns_of(keys_);
    std::string text;
    const auto line = [&](const auto& field_of) {
        for (std::size_t i = 0; i < columns.size(); ++i)
            text += (i == 0 ? "" : ",") + csv_field(field_of(columns[i]));
        text += "\n";
    };
    line([](const std::string& column) { return column; });
    for (const Row& row : rows_)
        line([&](const std::string& column) {
            const auto found = row.find(column);
            return found == row.end() ? std::string() : found->second;
        });
    write_text_file(path_, text);
}

}  // namespace keyhole
