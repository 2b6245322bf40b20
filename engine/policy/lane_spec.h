/// Lane spec: the one text form of a lane's settings, `preset[:key=value[,key=value]...]`, the same in command line, window and files.
/// Any thread; knows policy, and of the model how KV heads are shared.
#pragma once

#include "engine/model/kv_sharing.h"
#include "engine/policy/params.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct LaneSpec {
    PolicyParams policy;
    KvSharing sharing{};
    bool operator==(const LaneSpec&) const = default;
};

/// Throws Error(wrong_use) naming the spec, the position of the fault (1-based character) and the nearest valid word.
LaneSpec parse_lane_spec(std::string_view text);

/// The lane with other values for some keys: items as after the colon of a spec, such as `budget=64,alpha@L0=0.5`. An override for heads
/// that have one of the same key replaces it. Throws as parse_lane_spec.
LaneSpec changed_lane_spec(LaneSpec spec, std::string_view items);

/// A sharing as `kv` takes it, with its parentheses or without: `mha`, `gqa:4`, `mqa`, `mlkv:m=4,g=1`, `own`. Throws as parse_lane_spec.
KvSharing parse_kv_sharing(std::string_view text);
/// As parse_kv_sharing() reads it, without merge and compensate.
std::string format_kv_sharing(const KvSharing& sharing);

/// Keys of the spec, in its order.
std::vector<std::string_view> lane_spec_keys();

/// The shortest spec that parses to the same lane: the preset's defaults are left out.
std::string format_lane_spec(const LaneSpec& spec);

/// The spec with amounts as tokens after clamping, and what the released dialect fixes: what is in force. For window and files.
std::string format_effective_spec(const LaneSpec& spec, int n_prompt, int n_generate);

std::string_view preset_name(Preset preset);
/// A sentence for the policy card: what the preset keeps, and the paper.
std::string_view preset_help(Preset preset);
std::string_view dialect_name(Dialect dialect);
/// One sentence: how the released code of the preset differs from its paper; that there is none, where there is none.
std::string_view dialect_help(Preset preset);

/// `L0-3.H2`, `L5`, `H0`: the layers and heads of an override as in the spec.
std::string format_override_heads(const Override& override_of);

}  // namespace keyhole
