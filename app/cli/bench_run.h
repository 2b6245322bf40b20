/// The setup of `keyhole bench`: options, the model with its backend, and the lanes. Knows no table.
#pragma once

#include "app/cli/options.h"
#include "engine/backend/module/cuda_module.h"
#include "engine/base/backend_options.h"
#include "engine/base/device_use.h"
#include "engine/bench/bench.h"
#include "engine/bench/papers.h"
#include "engine/model/seeded_model.h"

#include <nlohmann/json.hpp>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// The number types of random weights, which --dtype takes by their names.
inline constexpr std::array kWeightTypes = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,
                                            DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};

/// The options of `keyhole bench`.
struct BenchRun {
    RunOptions run;
    std::string shape, paper, dtype = "f16";
    PaperScale scale;
    int context = 512;
    int batch = 1;
    int rounds = 5;
    bool instrument = false;
    bool scores = false;
    bool parts = false;
    bool prompt = false;
    bool json = false;
    std::string text;  // file for the tokenizer
    int cublas_from = 0;
    std::string executor;  // "none": a device that does nothing

    DType weight_type() const;  ///< of random weights
    BackendOptions backend_options() const {
        BackendOptions out = run.backend_options();
        out.prove = proof_progress();
        return out;
    }
    cuda::ProductOptions products() const {
        cuda::ProductOptions out;
        if (cublas_from > 0) out.cublas_from = cublas_from;
        out.weights_precision = out.integers = run.precision != "float";  // where no backend is chosen
        return out;
    }
};

/// The model and backend of a bench.
struct BenchedModel {
    std::shared_ptr<const Model> model;
    std::unique_ptr<Backend> backend;
    std::string backend_text;
    std::unique_ptr<Bandwidth> bandwidth;
    bool on_device = false;
};

/// Loads the model that the options name. Throws Error(no_memory) if the host has no room for it.
BenchedModel benched_model(const BenchRun& options);
/// Makes a model of this shape with random weights.
BenchedModel benched_shape(const BenchRun& options, const ModelShape& shape);

/// Returns the specs of the lanes; one that keeps everything if none is given.
std::vector<std::string> specs_of(const BenchRun& options);
/// Returns n_lanes lanes with the settings of a spec. Throws Error(wrong_use) if they need another model.
ContenderSetup contender_setup(const std::string& spec, int n_lanes, int context, int n_tokens);

/// Adds a contender. Throws if the host has no room for its cache.
Contender& add_contender(std::deque<Contender>& contenders, const BenchedModel& benched,
                         ContenderSetup setup);

/// Decodes with all contenders in interleaved rounds. progress: of the command; the rounds are its part from
/// `begin` to `end`.
BenchReport run_rounds(const BenchRun& options, BenchedModel& benched, std::deque<Contender>& contenders,
                       bool parts, Progress& progress, double begin = 0, double end = 1);

/// Says how many steps ran as a graph: without graphs a device takes microseconds for every launch.
void print_graphs(const LaunchCounts& counts);
nlohmann::json json_of_graphs(const LaunchCounts& counts);

nlohmann::json json_of_line(const BenchLine& line, const BenchLine& first);
void print_step_parts(const std::vector<BenchLine>& lines);

/// Time decoding, a paper's table, and prompts.
void bench_lanes(const BenchRun& options);
void bench_paper(const BenchRun& options);
void bench_prompts(const BenchRun& options);

}  // namespace keyhole
