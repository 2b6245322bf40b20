/// What a user may change between tokens, and its text form: the same words in log, run.json, --script and
/// palette. Any thread; plain values.
#pragma once

#include "engine/policy/lane_spec.h"

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace keyhole {

struct Sampling {
    double temperature = 0;  ///< 0: greedy
    int top_k = 0;           ///< 0: off
    double top_p = 1;        ///< 1: off
    bool operator==(const Sampling&) const = default;
};

/// lane <index> <spec>. What is gone stays gone: a switch from scope head to layer selects among what a KV head still holds, so
/// that heads may hold fewer tokens than the budget until new ones come. Switching the shadow on lives the lane again from the
/// prompt, with its own tokens and commands.
struct SetLane {
    int index = 0;
    LaneSpec spec;
    bool operator==(const SetLane&) const = default;
};
struct AddLane {  ///< add <spec>: prefilled from the prompt, past tokens forced
    LaneSpec spec;
    bool operator==(const AddLane&) const = default;
};
struct RemoveLane {  ///< remove <index>; lane 0, the reference, stays
    int index = 0;
    bool operator==(const RemoveLane&) const = default;
};
struct SetFollow {  ///< follow on|off
    bool on = true;
    bool operator==(const SetFollow&) const = default;
};
struct SetSampling {  ///< sampling temperature=T,top_k=K,top_p=P
    Sampling sampling;
    bool operator==(const SetSampling&) const = default;
};

struct ForkLane {  ///< fork <index> [<spec>]: a new lane at the end, an exact copy at the present row
    int index = 0;
    std::optional<LaneSpec> spec;  ///< applied to the copy at once
    bool operator==(const ForkLane&) const = default;
};
struct Rewind {  ///< rewind <row>: back to right after that row, before any command stamped with it
    int row = 0;
    bool operator==(const Rewind&) const = default;
};
struct GoToBranch {  ///< branch <id>: to the end of what a rewind cut off
    int id = 0;
    bool operator==(const GoToBranch&) const = default;
};
/// A token of a lane: everywhere, in a layer, or in the KV head that a query head reads.
struct TokenPlace {
    int index = 0;  ///< of the lane
    int position = 0;
    int layer = -1;  ///< -1: everywhere
    int head = -1;   ///< query head; -1: the whole layer
    bool operator==(const TokenPlace&) const = default;
};
struct EvictToken {  ///< evict <index> <position> [L<layer>[.H<head>]]
    TokenPlace at;
    bool operator==(const EvictToken&) const = default;
};
struct PinToken {  ///< pin <index> <position> [L<layer>[.H<head>]]: never evicted; counts in the budget
    TokenPlace at;
    bool operator==(const PinToken&) const = default;
};
struct UnpinToken {  ///< unpin <index> <position> [L<layer>[.H<head>]]
    TokenPlace at;
    bool operator==(const UnpinToken&) const = default;
};

/// force <id>[,<id>...]: the next rows consume these tokens in all lanes, one a row, instead of what the lanes chose; they queue behind
/// those that wait already; `force!`: instead of those. The caches stay, and a lane whose text ended with the present row goes on.
struct ForceTokens {
    std::vector<int> tokens;
    bool instead = false;
    bool operator==(const ForceTokens&) const = default;
};
/// say "<text>": the same with the tokens of a text, in quotes with \n, \t, \" and \\, such as a user's next turn; `say!` likewise.
struct SayText {
    std::string text;
    bool instead = false;
    bool operator==(const SayText&) const = default;
};

using Command = std::variant<SetLane, AddLane, RemoveLane, SetFollow, SetSampling, ForkLane, Rewind,
                             GoToBranch, EvictToken, PinToken, UnpinToken, ForceTokens, SayText>;

/// Applied after row `row` (n_prompt - 1: before the first decode row).
struct LoggedCommand {
    int row = 0;
    Command command;
    bool operator==(const LoggedCommand&) const = default;
};

std::string format_command(const Command& command);
/// Throws Error(wrong_use) with the text and the valid forms.
Command parse_command(std::string_view text);

}  // namespace keyhole
