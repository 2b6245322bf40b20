/// The commands that a user may give between tokens, and their text form, which is the same in the log,
/// run.json, --script and the palette. Plain values, for any thread; knows no session.
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
    // Rules of the choice: see apply_rules() in token_rules.h.
    double repetition_penalty = 1;  ///< 1: off
    int no_repeat_ngram = 0;        ///< tokens of a sequence that may not come twice; 0: off
    int min_tokens = 0;             ///< before them a text does not end
    bool operator==(const Sampling&) const = default;
};

/// lane <index> <spec>: changes a lane. Evicted tokens do not return: after a switch from scope head to layer
/// the policy selects among the tokens that a KV head still holds, so heads may hold fewer tokens than the
/// budget until new ones come. Switching the shadow on replays the lane from the prompt, with its own tokens
/// and commands.
struct SetLane {
    int index = 0;
    LaneSpec spec;
    bool operator==(const SetLane&) const = default;
};
struct AddLane {  ///< add <spec>: a new lane, replayed with the prompt and lane 0's tokens
    LaneSpec spec;
    bool operator==(const AddLane&) const = default;
};
struct RemoveLane {  ///< remove <index>; lane 0, the reference, stays
    int index = 0;
    bool operator==(const RemoveLane&) const = default;
};
/// restore <index> <spec>: the lane that was removed last from this place, with these settings, comes back
/// with its past. It runs from the prompt again, and reads lane 0's tokens for the rows that it missed.
struct RestoreLane {
    int index = 0;
    LaneSpec spec;
    bool operator==(const RestoreLane&) const = default;
};
struct SetFollow {  ///< follow on|off
    bool on = true;
    bool operator==(const SetFollow&) const = default;
};
/// sampling temperature=T,top_k=K,top_p=P,repetition_penalty=R,no_repeat_ngram=N,min_tokens=N
struct SetSampling {
    Sampling sampling;
    bool operator==(const SetSampling&) const = default;
};

struct ForkLane {  ///< fork <index> [<spec>]: adds a lane at the end, an exact copy at the current row
    int index = 0;
    std::optional<LaneSpec> spec;  ///< applied to the copy at once
    bool operator==(const ForkLane&) const = default;
};
struct Rewind {  ///< rewind <row>: returns to right after that row, before any command stamped with it
    int row = 0;
    bool operator==(const Rewind&) const = default;
};
struct GoToBranch {  ///< branch <id>: goes to the end of a branch that a rewind cut off
    int id = 0;
    bool operator==(const GoToBranch&) const = default;
};
/// Where a token is addressed: in all KV heads of a lane, in a layer, or in the KV head that a query head
/// reads.
struct TokenPlace {
    int index = 0;  ///< the lane's index
    int position = 0;
    int layer = -1;  ///< -1: all layers
    int head = -1;   ///< query head; -1: the whole layer
    bool operator==(const TokenPlace&) const = default;
};
struct EvictToken {  ///< evict <index> <position> [L<layer>[.H<head>]]
    TokenPlace at;
    bool operator==(const EvictToken&) const = default;
};
struct PinToken {  ///< pin <index> <position> [L<layer>[.H<head>]]: never evict; counts in the budget
    TokenPlace at;
    bool operator==(const PinToken&) const = default;
};
struct UnpinToken {  ///< unpin <index> <position> [L<layer>[.H<head>]]
    TokenPlace at;
    bool operator==(const UnpinToken&) const = default;
};

/// force <id>[,<id>...]: the next rows of all lanes consume these tokens, one a row, instead of the lanes'
/// choices. They queue behind tokens that already wait; `force!` replaces those. The caches stay. A lane
/// whose text ended with the current row continues.
struct ForceTokens {
    std::vector<int> tokens;
    bool instead = false;
    bool operator==(const ForceTokens&) const = default;
};
/// say "<text>": like force, with the tokens of a text such as a user's next turn. In quotes, with \n, \t, \"
/// and \\. `say!` replaces waiting tokens. `say_after` waits until lane 0 has ended its answer; several wait
/// for one answer each.
struct SayText {
    std::string text;
    bool instead = false;
    bool after = false;
    bool operator==(const SayText&) const = default;
};

using Command = std::variant<SetLane, AddLane, RemoveLane, RestoreLane, SetFollow, SetSampling, ForkLane,
                             Rewind, GoToBranch, EvictToken, PinToken, UnpinToken, ForceTokens, SayText>;

/// A command with the row after which it applies (n_prompt - 1: before the first decode row).
struct LoggedCommand {
    int row = 0;
    Command command;
    bool operator==(const LoggedCommand&) const = default;
};

/// Returns whether the command goes to an earlier row, or to another branch.
bool turns_back(const Command& command);
std::string format_command(const Command& command);
/// Parses a command. Throws Error(wrong_use) with the text and the valid forms.
Command parse_command(std::string_view text);

}  // namespace keyhole
