/// Budgets that KV heads have of their own: a table of layers and heads. Any thread; knows base only.
/// head_file.h reads and writes files of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The budget of a head.
struct HeadBudget {
    enum class Unit {
        all,      ///< every token
        tokens,   ///< a number of them
        percent,  ///< of the prompt
        times,    ///< times the lane's budget, beside its sinks and recent tokens
    };
    Unit unit = Unit::times;
    double value = 1;
    bool operator==(const HeadBudget&) const = default;
};

/// A row for each layer, a column for each KV head of a layer, or for each query head: those that read one KV
/// head then have their mean. Empty: all heads have the lane's own budget.
struct HeadTable {
    int n_columns = 0;
    std::vector<HeadBudget> cells{};  ///< [layers * columns]

    bool empty() const { return cells.empty(); }
    int n_layers() const { return n_columns == 0 ? 0 : static_cast<int>(cells.size()) / n_columns; }
    const HeadBudget& at(int layer, int column) const {
        return cells[static_cast<std::size_t>(layer) * static_cast<std::size_t>(n_columns) +
                     static_cast<std::size_t>(column)];
    }
    bool operator==(const HeadTable&) const = default;
};

/// The most cells of a table: four times the query heads of the largest models.
inline constexpr std::size_t kMostHeadCells = 1 << 16;

/// Reads a cell: `64`, `all`, `25%`, `1.5x`. nullopt: it is none.
std::optional<HeadBudget> head_budget_of(std::string_view text);
std::string head_budget_text(const HeadBudget& budget);

/// Writes a table as a lane spec has it: `64 3*all / 1.5x 25% 2*1x`, with a stroke between layers and a count
/// before cells that repeat. Empty: `none`.
std::string head_table_text(const HeadTable& table);
/// Returns whether a text begins as head_table_text() writes tables: it is no name of a file.
bool is_head_table_text(std::string_view text);
/// Reads what head_table_text() writes. A fault sets *fault and returns an empty table.
HeadTable head_table_of(std::string_view text, std::string* fault);

/// Returns a few words for names and cards: "32 x 8 heads, 3fa9c1".
std::string head_table_name(const HeadTable& table);

/// Returns the fault of the cells, one sentence; empty: none.
std::string head_table_fault(const HeadTable& table);

}  // namespace keyhole
