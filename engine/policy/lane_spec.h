/// Lane spec: the text form of a lane, `[NAME=]preset[:key=value[,key=value]...]`, the same in command line,
/// window and files. Any thread. Knows policy and, of the model, only how KV heads are shared.
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
    std::string name{};  ///< that a user gave it; empty: none. It changes no result
    bool operator==(const LaneSpec&) const = default;
};

/// Throws Error(wrong_use) with the spec, the position of the fault (1-based character) and the nearest
/// valid word. `heads=FILE` reads the file, and throws Error(bad_file) for a fault in it. A name ends with
/// the first `=` where that stands before any `:`; it has 1 to 60 bytes that printable_text()
/// leaves as they are.
LaneSpec parse_lane_spec(std::string_view text);

/// As parse_lane_spec(), for the text of a file that others made: it reads no other file.
LaneSpec parse_stored_lane_spec(std::string_view text);

/// Returns the lane with new values for some keys. items: as after the colon of a spec, such as
/// `budget=64,alpha@L0=0.5`. A new override replaces an old one of the same key and heads. Throws as
/// parse_lane_spec().
LaneSpec changed_lane_spec(LaneSpec spec, std::string_view items);

/// Parses a sharing as the key `kv` takes it, with or without its parentheses: `mha`, `gqa:4`, `mqa`,
/// `mlkv:m=4,g=1`, `own`. Throws as parse_lane_spec().
KvSharing parse_kv_sharing(std::string_view text);
/// Returns the text that parse_kv_sharing() reads; leaves out merge and compensate.
std::string format_kv_sharing(const KvSharing& sharing);

/// Returns the keys of the spec in its order.
std::vector<std::string_view> lane_spec_keys();

/// A key of a lane spec and its value, as in the spec.
struct LaneSetting {
    std::string key, value;
    bool operator==(const LaneSetting&) const = default;
};
/// Returns the values of all keys in the order of lane_spec_keys(), defaults too, then those of the overrides
/// (`budget@L0-3`).
std::vector<LaneSetting> lane_settings(const LaneSpec& spec);

/// Returns the shortest spec that parses to the same lane: it leaves out the preset's defaults.
std::string format_lane_spec(const LaneSpec& spec);

/// Returns whether two lanes do the same, whatever they are called.
bool same_settings(LaneSpec a, LaneSpec b);
/// The same without shadows, which only measure.
bool same_results(LaneSpec a, LaneSpec b);

/// Returns the spec as it takes effect, for window and files: amounts as tokens after clamping, and the
/// values that the released dialect fixes.
std::string format_effective_spec(const LaneSpec& spec, int n_prompt, int n_generate);

std::string_view preset_name(Preset preset);
/// Returns what papers call it where its name hides that: "StreamingLLM" for `sink`; else nothing.
std::string_view preset_title(Preset preset);
/// Returns a sentence for the policy card: what the preset keeps, and its paper.
std::string_view preset_help(Preset preset);
std::string_view dialect_name(Dialect dialect);
/// Returns one sentence: how the released code of the preset differs from its paper, or that there is no
/// code.
std::string_view dialect_help(Preset preset);

/// Returns the layers and heads of an override as in the spec: `L0-3.H2`, `L5`, `H0`, `L5.G2`.
std::string format_override_heads(const Override& override_of);

}  // namespace keyhole
