/// Contenders in interleaved rounds, and what their times mean: tokens a second, bytes, the share of what memory gives. Engine thread only.
#pragma once

#include "engine/bench/bandwidth.h"
#include "engine/bench/contender.h"

#include <functional>
#include <vector>

namespace keyhole {

struct BenchOptions {
    int n_steps = 64;  ///< of each contender, over all rounds
    int n_rounds = 5;
    bool parts = false;                          ///< also where the time goes, in steps of their own
    std::function<void(double share)> progress;  ///< may be empty
};

struct BenchLine {
    std::string name;
    int n_lanes = 1, context = 0;
    double ms_per_step = 0;  ///< median
    double p99_over_p50 = 0;
    double tokens_per_s = 0;          ///< of all lanes
    std::int64_t kv_bytes = 0;        ///< K and V that a step reads
    std::int64_t bytes_per_step = 0;  ///< and the weights, once for all lanes
    double gb_per_s = 0;
    double share_of_bandwidth = 0;
    double allocated_bytes = 0;  ///< of the caches
    bool has_parts = false;
    StepTimes parts;
};

struct BenchReport {
    double bandwidth = 0;           ///< GB/s, median
    std::int64_t weight_bytes = 0;  ///< that a step reads
    double share_of_others = 0;     ///< of the machine's busy time
    std::vector<BenchLine> lines;   ///< as the contenders
};

/// Weights that a step reads: all but the embeddings, of which it reads a row.
std::int64_t read_weight_bytes(const Model& model);

/// Contenders have processed their prompts.
BenchReport run_bench(const Model& model, Backend& backend, std::span<Contender* const> contenders,
                      Bandwidth& bandwidth, const BenchOptions& options);

/// Tokens a second of `line` over those of `base`: measured, and what the bytes that both read predict.
struct SpeedUp {
    double measured = 0, by_bytes = 0;
};
SpeedUp speed_up(const BenchLine& line, const BenchLine& base);

}  // namespace keyhole
