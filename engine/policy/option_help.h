/// Help for every option of a lane: one table for the policy card and the command line. Any thread; knows
/// policy only.
#pragma once

#include "engine/policy/lane_spec.h"
#include "engine/policy/params.h"

#include <span>
#include <string>
#include <string_view>

namespace keyhole {

struct OptionHelp {
    std::string_view name;    ///< `preset`, or a key of the lane spec
    std::string_view values;  ///< examples as a spec writes them, two blanks apart
    std::string_view help;    ///< what it does, one or two sentences
    std::string_view paper;   ///< where it comes from: paper and section
};

/// Returns `preset` first, then every key in the order of the lane spec.
std::span<const OptionHelp> option_helps();
/// Returns the help of an option, which must exist (asserted).
const OptionHelp& option_help(std::string_view name);

/// Returns one sentence on why an option has no effect under these settings (on what is kept, attended to
/// or measured), or an empty text when it has one. heads: those of the model, where it is known.
std::string no_effect_reason(const PolicyParams& params, std::string_view name, const HeadGrid& heads = {});

/// Returns the options that the released dialect replaces although they were set to something else than the
/// preset's own value: "scope=head (not layer), every=1 (not 8)". Empty where there are none.
std::string replaced_by_release(const LaneSpec& spec);

/// Returns the text on how many tokens a unit stores and a row attends to once the budget is full:
/// "stores k = 64, attends k + 1 = 65" (policies, section 1).
std::string accounting_text(const ResolvedPolicy& policy);

}  // namespace keyhole
