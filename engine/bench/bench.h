/// Runs contenders in interleaved rounds and derives figures from their times: tokens per second, bytes,
/// share of the memory bandwidth. Engine thread only. Knows no command line.
#pragma once

#include "engine/bench/bandwidth.h"
#include "engine/bench/contender.h"

#include <functional>
#include <optional>
#include <vector>

namespace keyhole {

struct BenchOptions {
    int n_steps = 64;  ///< per contender, over all rounds
    int n_rounds = 5;
    bool parts = false;                          ///< also measure where the time goes, in extra steps
    std::function<void(double share)> progress;  ///< may be empty
};

struct BenchLine {
    std::string name;
    int n_lanes = 1, context = 0;
    double ms_per_step = 0;  ///< median
    double p99_over_p50 = 0;
    double tokens_per_s = 0;          ///< over all lanes
    std::int64_t kv_bytes = 0;        ///< K and V that a step reads
    std::int64_t bytes_per_step = 0;  ///< kv_bytes and the weights, once for all lanes
    double gb_per_s = 0;
    double bandwidth = 0;  ///< GB/s over as many bytes, the best of all measurements
    double share_of_bandwidth = 0;
    double allocated_bytes = 0;  ///< by the caches
    bool has_parts = false;
    StepTimes parts;
};

struct BenchReport {
    std::int64_t weight_bytes = 0;  ///< read by a step
    double share_of_others = 0;     ///< share of the machine's busy time taken by other processes
    std::vector<BenchLine> lines;   ///< in the order of the contenders
    /// Of the backend, before steps whose parts are timed: these run kernel by kernel. nullopt: of a CPU.
    std::optional<LaunchCounts> launches;
};

/// Returns the bytes of weights that a step reads: all except embeddings, of which it reads one row per lane.
/// An embedding that is also the output matrix counts.
std::int64_t read_weight_bytes(const Model& model);

/// What a part of a step reads from memory. Scoring, eviction and the rest work on what caches hold.
struct PartRead {
    const char* part = "";
    std::int64_t n_bytes = 0;  ///< a step
    double gb_per_s = 0;
    double share_of_bandwidth = 0;
};
/// Returns them for linear layers and attention; empty where the line has no parts.
std::vector<PartRead> part_reads(const BenchLine& line);

/// Runs the bench. The contenders must have processed their prompts.
BenchReport run_bench(const Model& model, Backend& backend, std::span<Contender* const> contenders,
                      Bandwidth& bandwidth, const BenchOptions& options);

/// Tokens per second of `line` divided by those of `base`: measured, and as predicted from the bytes that
/// each reads.
struct SpeedUp {
    double measured = 0, by_bytes = 0;
};
SpeedUp speed_up(const BenchLine& line, const BenchLine& base);

}  // namespace keyhole
