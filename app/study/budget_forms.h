/// Ways to spend a total of tokens on KV heads or layers, at one mean budget. Pure functions, for any thread;
/// knows no backend.
#pragma once

#include "app/study/attribution.h"

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

enum class BudgetForm {
    uniform,    ///< the same in each
    pyramid,    ///< more in low layers (PyramidKV)
    adaptive,   ///< the heads of a layer share theirs by attention (Ada-KV)
    streaming,  ///< the best keep all tokens, the others sinks and the newest (DuoAttention)
    whole,      ///< greedy: the best keep all tokens, the others `rest` by the lane's policy
    gain,       ///< each `rest`, and a share by what it gains
};

struct BudgetFormRow {
    BudgetForm form;
    std::string_view name, help;  ///< name: in commands
};
std::span<const BudgetFormRow> budget_forms();
std::optional<BudgetForm> budget_form_from_name(std::string_view name);

/// The total, as tokens a head.
struct BudgetTotal {
    int budget = 0;
    int rest = 0;     ///< of the parts that do not keep all: streaming, whole, gain
    int context = 0;  ///< what a part that keeps all tokens costs
};

/// Returns the tokens of each part in the order of the effects; nullopt: the policy shares them by itself.
std::optional<std::vector<int>> budget_tokens(BudgetForm form, const Attribution& found,
                                              const BudgetTotal& total, RankBy by);

/// Returns the lane with that budget. The lane's own budgets by head are dropped; its name stays. Throws
/// Error(wrong_use) where the lane's preset does not take the form, or no part could keep all tokens.
LaneSpec lane_with_budget(const LaneSpec& lane, BudgetForm form, const Attribution& found,
                          const BudgetTotal& total, RankBy by);

}  // namespace keyhole
