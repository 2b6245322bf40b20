/// Runs the engine's backend on a prompt and forced tokens, several lanes at once, and compares its rows with
/// the reference.
#pragma once

#include "engine/backend/backend.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/reference_policy.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace reference {

/// A lane as the engine is told it, and what the reference takes it for.
struct Case {
    std::string spec;
    Policy policy;
    const Weights* weights = nullptr;  ///< of a lane that shares KV heads otherwise; null: the model's
};

/// "h2o:budget=4" with the numbers that design and papers give it.
Case preset_case(const std::string& preset, int budget, int n_generate);

/// rows[lane][0] is the last prompt row, then one for each of `decode`. Every part of a row is asked for.
using LaneRows = std::vector<std::vector<keyhole::RowOutput>>;
LaneRows run_engine(const std::shared_ptr<const keyhole::Model>& model, std::span<const std::string> specs,
                    std::span<const int> prompt, std::span<const int> decode, int n_threads = 2);
/// The same on any backend of the model.
LaneRows run_backend(keyhole::Backend& backend, const std::shared_ptr<const keyhole::Model>& model,
                     std::span<const std::string> specs, std::span<const int> prompt,
                     std::span<const int> decode);

/// Positions that a KV head attended to in a row.
std::set<int> attended_positions(const keyhole::RowOutput& out, int kv_head);
/// Positions that it holds after the row.
std::set<int> stored_positions(const keyhole::RowOutput& out, int kv_head);

/// Bit-equal rows, all values. The first difference in words, empty when there is none.
std::string difference(const keyhole::RowOutput& a, const keyhole::RowOutput& b);

/// Worst error of each kind over the share of `kTolerance` of the row's scale, and near ties of the
/// selection.
struct Agreement {
    double next_logits = 0, attention = 0, logits = 0, noise = 0, scores = 0;
    std::string worst;     ///< where the largest of them was
    int n_selections = 0;  ///< rows after which something was evicted
    int n_near_ties =
        0;  ///< of these, differing sets with a margin below kNearTie: the engine's choice was taken over
};
inline constexpr double kTolerance = 1e-4;
inline constexpr double kNearTie = 1e-5;

/// Compares every decode row and the last prompt row of every lane with the reference: attended sets and
/// evictions exactly (as gtest failures that name row, head and margin), values by tolerance. backend null: the CPU's.
Agreement compare_with_reference(const std::shared_ptr<const keyhole::Model>& model, const Weights& weights,
                                 std::span<const Case> cases, std::span<const int> prompt,
                                 std::span<const int> decode, keyhole::Backend* backend = nullptr);

}  // namespace reference
