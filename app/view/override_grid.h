/// The overrides of one field as a grid of layers x query heads that can be painted: from the parameters, and back to them in few ranges.
/// Pure; any thread; knows policy only.
#pragma once

#include "engine/policy/params.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// What a cell is told; the member that belongs to the field counts.
struct OverrideValue {
    Amount amount;     ///< budget, recent
    double value = 0;  ///< alpha, gain
    TauSchedule tau;   ///< tau
    bool operator==(const OverrideValue&) const = default;
};

std::string_view override_field_name(Override::Field field);
/// The lane's own value of a field, for cells that are told nothing.
OverrideValue own_value(const PolicyParams& params, Override::Field field);

class OverrideGrid {
  public:
    OverrideGrid(const PolicyParams& params, Override::Field field, HeadGrid heads);

    /// nullopt: the lane's own value.
    const std::optional<OverrideValue>& at(int layer, int head) const { return cells_[index(layer, head)]; }
    bool empty() const;

    /// Paints a range of cells, and with each cell all that are selected together with it (the readers of its KV head, its layer, the model).
    void paint(int first_layer, int last_layer, int first_head, int last_head,
               const std::optional<OverrideValue>& value);

    /// The parameters with this field's overrides replaced by the grid's, in few ranges: found greedily, the value of most cells first,
    /// each time the rectangle that settles the most; what a later range covers, an earlier one may.
    PolicyParams written(PolicyParams params) const;

  private:
    std::size_t index(int layer, int head) const {
        return static_cast<std::size_t>(layer * heads_.n_heads + head);
    }
    Override::Field field_;
    HeadGrid heads_;
    Scope scope_;  ///< in force: the released dialect fixes it
    std::vector<std::optional<OverrideValue>> cells_;
};

/// The value in force for a head, as a number for its cell: tokens, alpha, gain, or tau at the row.
double effective_value(const ResolvedPolicy& policy, Override::Field field, int layer, int head, int row);

}  // namespace keyhole
