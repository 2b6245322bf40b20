#include "engine/policy/head_table.h"

#include "engine/base/fnv.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/policy/option_table.h"

#include <fmt/format.h>

#include <cmath>

namespace keyhole {
namespace {

constexpr std::string_view kCellForm =
    "64 (tokens), all, 25% (of the prompt) or 1.5x (times the lane's budget)";

/// Returns the pieces between blanks.
std::vector<std::string_view> words_of_table(std::string_view text) {
    constexpr std::string_view kBetween = " \t\r\n";
    std::vector<std::string_view> words;
    std::size_t at = 0;
    while ((at = text.find_first_not_of(kBetween, at)) != std::string_view::npos) {
        const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
        words.push_back(text.substr(at, end - at));
        at = end;
    }
    return words;
}

/// Cells that repeat: `3*all`.
struct RepeatedCell {
    std::size_t count = 0;
    HeadBudget budget;
};

std::optional<RepeatedCell> repeated_cell(std::string_view word) {
    const std::size_t star = word.find('*');
    std::size_t count = 1;
    if (star != std::string_view::npos) {
        const auto given = number_from_text<int>(word.substr(0, star), 1, static_cast<int>(kMostHeadCells));
        if (!given) return std::nullopt;
        count = static_cast<std::size_t>(*given);
        word.remove_prefix(star + 1);
    }
    const std::optional<HeadBudget> budget = head_budget_of(word);
    return budget ? std::optional(RepeatedCell{count, *budget}) : std::nullopt;
}

}  // namespace

std::optional<HeadBudget> head_budget_of(std::string_view text) {
    using Unit = HeadBudget::Unit;
    if (text == "all") return HeadBudget{Unit::all, 0};
    const bool percent = text.ends_with('%'), times = text.ends_with('x');
    if (percent || times) text.remove_suffix(1);
    const std::optional<double> value = number_from_text<double>(text);
    if (!value) return std::nullopt;
    return HeadBudget{percent ? Unit::percent : times ? Unit::times : Unit::tokens, *value};
}

std::string head_budget_text(const HeadBudget& budget) {
    switch (budget.unit) {
        case HeadBudget::Unit::all:
            return "all";
        case HeadBudget::Unit::percent:
            return fmt::format("{}%", budget.value);
        case HeadBudget::Unit::times:
            return fmt::format("{}x", budget.value);
        case HeadBudget::Unit::tokens:
            break;
    }
    return fmt::format("{}", budget.value);
}

std::string head_table_text(const HeadTable& table) {
    if (table.empty()) return "none";
    std::string text;
    for (int layer = 0; layer < table.n_layers(); ++layer) {
        if (layer > 0) text += " /";
        for (int column = 0, count = 0; column < table.n_columns; column += count) {
            const HeadBudget& cell = table.at(layer, column);
            for (count = 1; column + count < table.n_columns && table.at(layer, column + count) == cell;)
                ++count;
            text += text.empty() ? "" : " ";
            if (count > 1) text += fmt::format("{}*", count);
            text += head_budget_text(cell);
        }
    }
    return text;
}

bool is_head_table_text(std::string_view text) {
    const std::vector<std::string_view> words = words_of_table(text);
    return !words.empty() && repeated_cell(words.front()).has_value();
}

HeadTable head_table_of(std::string_view text, std::string* fault) {
    HeadTable table;
    std::size_t in_row = 0, row_at = 0;
    const auto refuse = [&](std::string what) {
        if (fault != nullptr) *fault = std::move(what);
        return HeadTable{};
    };
    const auto ends_row = [&] {
        if (row_at == 0) table.n_columns = static_cast<int>(in_row);
        ++row_at;
        return in_row > 0 && in_row == static_cast<std::size_t>(table.n_columns);
    };
    constexpr std::string_view kUneven = "layers between '/' have as many heads each";
    for (const std::string_view word : words_of_table(text)) {
        if (word == "/") {
            if (!ends_row()) return refuse(std::string(kUneven));
            in_row = 0;
            continue;
        }
        const std::optional<RepeatedCell> cell = repeated_cell(word);
        if (!cell) return refuse(fmt::format("'{}' is no budget of a head: {}", shown_text(word), kCellForm));
        in_row += cell->count;
        if (table.cells.size() + cell->count > kMostHeadCells)
            return refuse(fmt::format("a table of heads has at most {} cells", kMostHeadCells));
        table.cells.insert(table.cells.end(), cell->count, cell->budget);
    }
    if (!ends_row()) return refuse(std::string(kUneven));
    if (std::string what = head_table_fault(table); !what.empty()) return refuse(std::move(what));
    return table;
}

std::string head_table_name(const HeadTable& table) {
    if (table.empty()) return "none";
    const std::string text = head_table_text(table);
    return fmt::format("{} x {} heads, {:06x}", table.n_layers(), table.n_columns,
                       fnv1a(text) & std::uint64_t{0xffffff});
}

std::string head_table_fault(const HeadTable& table) {
    constexpr double kMostTimes = 1e6;
    for (const HeadBudget& cell : table.cells) {
        const bool whole = cell.value == std::floor(cell.value);
        const bool right = cell.unit == HeadBudget::Unit::all ||
                           (std::isfinite(cell.value) && cell.value >= 0 &&
                            (cell.unit == HeadBudget::Unit::tokens    ? whole && cell.value <= kMostTokens
                             : cell.unit == HeadBudget::Unit::percent ? cell.value <= 1e9
                                                                      : cell.value <= kMostTimes));
        if (!right) return fmt::format("'{}' is no budget of a head: {}", head_budget_text(cell), kCellForm);
    }
    return {};
}

}  // namespace keyhole
