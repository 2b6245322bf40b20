/// What a shard of a command was to answer, in shard.json beside its answers.csv, and the joining of shards.
/// Main thread; computes nothing.
#pragma once

#include "engine/eval/shard.h"
#include "engine/policy/lane_spec.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// A set of questions that all shards answer together, each its own ones.
struct ShardNeed {
    std::string asked;  ///< as answers.csv names the questions: asked_on()
    int n_questions = 0;
    std::vector<std::string> lanes;  ///< likewise: specs, and what stands beside them
};
ShardNeed shard_need(const std::string& asked, int n_questions, std::span<const LaneSpec> lanes);

/// Writes shard.json into the folder.
void write_shard_file(const std::filesystem::path& folder, const Shard& shard,
                      std::span<const ShardNeed> needs);
/// Returns a line on what is there and how shards are joined.
std::string shard_note(const std::filesystem::path& folder, const Shard& shard);

/// What joining found.
struct MergeReport {
    int n_answers = 0;              ///< of these shards
    int n_new = 0;                  ///< of them, were not there before
    std::vector<std::string> lost;  ///< a line for each shard that is missing or not complete: how to get it
    std::string next;               ///< the command that prints the results from the joined answers
};

/// Joins the answers of shards into answers.csv in `out`. Answers that are there already stay. Throws
/// Error(bad_file) for a folder without a shard's files, and Error(wrong_use) if the shards are not of one
/// command: other questions, lanes, model or number of shards, which their hash tells.
MergeReport merge_shards(std::span<const std::string> folders, const std::string& out);

}  // namespace keyhole
