/// Budgets of KV heads that follow what was measured of them, at one total of tokens, and their files.
/// Pure functions, for any thread; knows no backend.
#pragma once

#include "app/study/attribution.h"
#include "engine/policy/head_table.h"

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
