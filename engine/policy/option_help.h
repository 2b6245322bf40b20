/// Help that depends on a lane's settings: why an option has no effect, what the released code replaces, how
/// many tokens stay. Any thread; knows policy only.
#pragma once

#include "engine/policy/lane_spec.h"
#include "engine/policy/params.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Returns one sentence on why an option has no effect under these settings (on what is kept, attended to
/// or measured), or an empty text when it has one. heads: those of the model, where it is known.
std::string no_effect_reason(const PolicyParams& params, std::string_view name, const HeadGrid& heads = {});

/// Returns the options that the released dialect replaces although they were set to something else than the
/// preset's own value: "scope=head (not layer), every=1 (not 8)". Empty where there are none.
std::string replaced_by_release(const LaneSpec& spec);
/// Returns the settings that differ from the preset's own and have no effect, with the reason: "tau=2 has no
/// effect: full keeps every token, so nothing is chosen and no gap opens". Those that replaced_by_release()
/// names are left out. Empty where there are none.
std::string settings_without_effect(const LaneSpec& spec);
/// Returns what a budget of fewer tokens than one becomes; empty: the budget is what the spec says.
std::string raised_budget(const LaneSpec& spec);
/// Returns why a lane ranks nothing though its policy ranks: what it protects fills its budget. Empty if it
/// ranks, or if its policy keeps the newest tokens whatever the budget is.
std::string filled_by_protection(const LaneSpec& spec);

/// Returns the text on how many tokens a unit stores and a row attends to once the budget is full:
/// "stores k = 64, attends k + 1 = 65" (policies, section 1).
std::string accounting_text(const ResolvedPolicy& policy);

}  // namespace keyhole
