/// Budgets of KV heads that follow what was measured of them, at one total of tokens, and their files.
/// Pure functions, for any thread; knows no backend.
#pragma once

#include "app/study/attribution.h"
#include "engine/policy/head_table.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Shares a total of `budget` tokens a head in proportion to gains. Every head has `rest`; what is left goes
/// to heads whose gain is above 0, and no head gets more than `context`. What a head cannot take goes to the
/// others in the same way. Parts of tokens go one by one to the largest remainders. Without a gain above 0
/// all heads have `budget`. Needs 1 <= rest <= budget <= context.
std::vector<int> budgets_by_gain(std::span<const double> gains, int budget, int rest, int context);

/// Returns the lane with these budgets, as overrides: `all` from `context` on.
LaneSpec lane_with_tokens_by_part(const LaneSpec& lane, std::span<const CachePart> parts,
                                  std::span<const int> tokens, int context);

/// A part that was chosen beside those before it.
struct ChosenPart {
    CachePart part;
    double nats = 0;   ///< of the answer, a question, less than before it was chosen
    double right = 0;  ///< share of right answers with it
};
/// Answers the same questions with lanes: [lane][question].
using AskLanes = std::function<std::vector<std::vector<Outcome>>(std::span<const LaneSpec>)>;
/// Chooses n parts that keep all tokens, where the others have `rest`, one by one: after each, every other
/// part is measured anew beside those chosen, and the best is taken, of equal ones the first. So two parts
/// that hold the same tokens are not both chosen for them. by: nats, or right answers and then nats.
std::vector<ChosenPart> choose_one_by_one(const LaneSpec& lane, std::span<const CachePart> parts, int n,
                                          int rest, RankBy by, const AskLanes& ask);
/// Returns a line for each step.
std::string chosen_text(std::span<const ChosenPart> chosen);

/// Returns the table that a lane reads by heads=FILE: tokens[i] for parts[i], `all` from `context` on. Parts
/// are KV heads or layers. Empty where a layer owns no KV heads, since the table has a row for each layer.
HeadTable head_table(const KvLayout& layout, std::span<const CachePart> parts, std::span<const int> tokens,
                     int context);

/// Returns a matrix as DuoAttention's full_attention_heads.tsv has it: a line a layer, a number from 0 to 1 a
/// KV head. It is the gain over the largest gain; below 0 it is 0.
std::string duo_text(const KvLayout& layout, const Attribution& found);
/// Returns its config.json: how many sinks and newest tokens the other heads keep.
std::string duo_config_text(int sinks, int recent);

/// Returns scores as HeadKV reads them: {"layer-head": [score, ...]}, a score a question for each query head,
/// that of the KV head which it reads. Below 0 it is 0.
std::string headkv_text(const Attribution& found);

}  // namespace keyhole
