/// Edits the overrides of one field as a grid of layers x query heads: reads it from the parameters, and
/// writes it back in few ranges. Pure; any thread; knows only policies.
#pragma once

#include "engine/base/index.h"
#include "engine/policy/params.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The value of a cell. Only the member that belongs to the field counts.
struct OverrideValue {
    Amount amount;          ///< budget, recent
    double value = 0;       ///< alpha, gain
    TauSchedule tau;        ///< tau
    FormulaText formula{};  ///< score, choose, protect
    bool operator==(const OverrideValue&) const = default;
};

std::string_view override_field_name(Override::Field field);
/// Returns the lane's own value of a field, which applies to cells without an override.
OverrideValue own_value(const PolicyParams& params, Override::Field field);

class OverrideGrid {
  public:
    OverrideGrid(const PolicyParams& params, Override::Field field, HeadGrid heads);

    /// Returns the override of a cell; nullopt: the lane's own value.
    const std::optional<OverrideValue>& at(int layer, int head) const { return cells_[index(layer, head)]; }
    bool empty() const;
    /// Of a field whose values are formulas: returns which of the lane's formulas the cell has, counted from
    /// 0, the lane's own first.
    int formula_index(int layer, int head) const;

    /// Paints a range of cells, and all cells that share a selection with them (the readers of one KV head,
    /// its layer, or the model).
    void paint(int first_layer, int last_layer, int first_head, int last_head,
               const std::optional<OverrideValue>& value);

    /// Returns the parameters with this field's overrides replaced by the grid's. It finds few ranges
    /// greedily: the value with the most cells first, and each time the rectangle that settles the most
    /// cells. Later ranges override earlier ones, so an earlier range may cover cells of a later one.
    PolicyParams written(PolicyParams params) const;

  private:
    std::size_t index(int layer, int head) const { return to_index(layer * heads_.n_heads + head); }
    Override::Field field_;
    HeadGrid heads_;
    std::vector<std::string> formulas_;  ///< of the lane and its overrides, each once
    Scope scope_;                        ///< in force; the released dialect fixes it
    std::vector<std::optional<OverrideValue>> cells_;
};

/// Returns the value in force for a head, as the number in its cell: tokens, alpha, gain, or tau at the row.
/// A formula is none: OverrideGrid::formula_index().
double effective_value(const ResolvedPolicy& policy, Override::Field field, int layer, int head, int row);

}  // namespace keyhole
