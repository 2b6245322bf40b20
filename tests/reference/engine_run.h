/// Runs an engine backend on a prompt and forced tokens, several lanes at once, and compares its rows with
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

/// A lane: its spec for the engine, and the policy that the reference simulates.
struct Case {
    std::string spec;
    Policy policy;
    const Weights* weights = nullptr;  ///< of a lane that shares KV heads otherwise; null: the model's
    Lane::Future future{};             ///< of RanksBy::future
};

/// Returns "h2o:budget=4" and the like with the numbers that design and papers give the preset.
Case preset_case(const std::string& preset, int budget, int n_generate);

/// rows[lane][0] is the last prompt row; one row for each token of `decode` follows. Requests every part of a
/// row.
using LaneRows = std::vector<std::vector<keyhole::RowOutput>>;
LaneRows run_engine(const std::shared_ptr<const keyhole::Model>& model, std::span<const std::string> specs,
                    std::span<const int> prompt, std::span<const int> decode, int n_threads = 2);
/// Does the same on any backend of the model.
/// futures: by lane, for policies that name it; empty: none.
using Futures = std::vector<std::shared_ptr<const keyhole::FutureTable>>;
LaneRows run_backend(keyhole::Backend& backend, const std::shared_ptr<const keyhole::Model>& model,
                     std::span<const std::string> specs, std::span<const int> prompt,
                     std::span<const int> decode, const Futures& futures = {});
/// Returns a table with the numbers of the reference.
std::shared_ptr<const keyhole::FutureTable> future_table(const Weights& weights, const Lane::Future& future,
                                                         int n_prompt, const std::vector<int>& tokens);

/// Returns the positions that a KV head attended to in a row.
std::set<int> attended_positions(const keyhole::RowOutput& out, int kv_head);
/// Returns the positions that a KV head stores after the row.
std::set<int> stored_positions(const keyhole::RowOutput& out, int kv_head);

/// Returns the first difference of two rows, compared bit by bit in all values; empty when they are equal.
std::string difference(const keyhole::RowOutput& a, const keyhole::RowOutput& b);

/// Largest error of each kind, as a share of kTolerance times the row's scale; and near ties of the
/// selection.
struct Agreement {
    double next_logits = 0, attention = 0, logits = 0, noise = 0, scores = 0;
    std::string worst;     ///< where the largest error was
    int n_selections = 0;  ///< rows that evicted something
    int n_near_ties =
        0;  ///< selections that differ with a margin below kNearTie; the engine's set was taken over
};
inline constexpr double kTolerance = 1e-4;
inline constexpr double kNearTie = 1e-5;

/// Compares every decode row and the last prompt row of every lane with the reference. Attended sets and
/// evictions must be equal (gtest failures name row, head and margin); values must be within tolerance.
/// backend null: the CPU backend.
Agreement compare_with_reference(const std::shared_ptr<const keyhole::Model>& model, const Weights& weights,
                                 std::span<const Case> cases, std::span<const int> prompt,
                                 std::span<const int> decode, keyhole::Backend* backend = nullptr);

/// Expects values within tolerance, few near ties, and so many selections at least.
void expect_agreement(const Agreement& a, int n_least);

}  // namespace reference
