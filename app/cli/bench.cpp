#include "app/cli/bench_run.h"

#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/resource_use.h"
#include "engine/device/open_cuda.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Measures what the host does for a step on CUDA, with a device that does nothing: time, launches, and
/// graphs that a device would make.
void bench_host_part(const BenchRun& options) {
    if (options.shape.empty() || !options.paper.empty())
        fail(ErrorCode::wrong_use, "bench: --executor none needs --shape, and no --paper");
    if (is_quantised(options.weight_type()))
        fail(ErrorCode::wrong_use, "bench: --executor none makes no {} weights; take f16, f32 or bf16",
             options.dtype);
    ModelShape shape = shape_of(options.shape);
    if (options.scale.layers > 0)
        shape.config.n_layers = std::min(shape.config.n_layers, options.scale.layers);
    const auto model = make_seeded_model(shape, options.weight_type(), 1, SeededStorage::unmade);
    const int n_layers = shape.config.n_layers;
    nlohmann::json json = {{"version", program_version()},
                           {"model", model->path().string()},
                           {"context", options.context},
                           {"batch", options.batch},
                           {"lanes", nlohmann::json::array()}};
    if (!options.json)
        print_out(
            "{}, {}\ncontext {}, batch {}, {} rows; nothing is evicted, since nothing is computed\n"
            "{:<44} {:>12} {:>9} {:>14} {:>9} {:>9} {:>16}\n",
            model->path().string(), "the host's part alone", options.context, options.batch,
            options.run.n_tokens, "lane", "host ms/step", "p99/p50", "launches/layer", "others", "graphs",
            "prompt launches");
    for (const std::string& spec : specs_of(options))
        for (const bool rows : {false, true}) {
            if (rows && !options.instrument) continue;
            std::string reason;
            const auto device = open_cuda_device(cuda_module_path(), kIdleDevice, reason);
            if (device == nullptr) fail(ErrorCode::device, "bench: {}", reason);
            const auto backend = device->make_backend(model, options.products());
            ContenderSetup setup =
                contender_setup(spec, options.batch, options.context, options.run.n_tokens);
            if (rows) setup.name += " +rows";
            setup.requested.attention = setup.requested.scores = rows;
            setup.requested.form = RowForm::packed;  // as a session without exports asks for them
            const std::string name = setup.name;
            const std::int64_t before_prompt = device->counts().launches;
            Contender contender(*model, *backend, std::move(setup));
            const LaunchCounts prompt = device->counts();
            contender.decode(2);  // buffers grow in the first rows
            contender.restart();
            const LaunchCounts before = device->counts();
            contender.decode(options.run.n_tokens);
            const LaunchCounts after = device->counts();
            std::vector<double> ms = contender.step_ms;
            std::sort(ms.begin(), ms.end());
            const double middle = median(ms), n_rows = static_cast<double>(options.run.n_tokens),
                         p99 = ms[to_index(static_cast<int>(0.99 * static_cast<double>(ms.size() - 1)))];
            const double launches = static_cast<double>(after.launches - before.launches) / n_rows;
            // Launches of every layer, and the other launches of the row.
            const double of_layer = std::floor(launches / n_layers), others = launches - of_layer * n_layers;
            const std::int64_t of_prompt = prompt.launches - before_prompt,
                               graphs = after.new_graphs - before.new_graphs;
            json["lanes"].push_back({{"spec", name},
                                     {"host_ms_per_step", middle},
                                     {"p99_over_p50", p99 / middle},
                                     {"launches_per_step", launches},
                                     {"launches_per_layer", of_layer},
                                     {"new_graphs", graphs},
                                     {"prompt_launches", of_prompt}});
            if (!options.json)
                print_out("{:<44} {:>12.4f} {:>9.2f} {:>14.0f} {:>9.0f} {:>9} {:>16}\n", name, middle,
                          p99 / middle, of_layer, others, graphs, of_prompt);
        }
    if (options.json) print_out("{}\n", json.dump(2));
}

std::vector<std::string> weight_type_names() {
    std::vector<std::string> names;
    for (const DType type : kWeightTypes) names.emplace_back(dtype_name(type));
    return names;
}

std::string joined(const std::vector<std::string_view>& names) {
    std::string text;
    for (const std::string_view name : names) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    return text;
}

/// Refuses options that act on random weights or on a paper's table where there are none.
void check_used(const CliCommand& command, const BenchRun& options) {
    if (const CliOption one = command.given({"--scale", "--scale-batch"}); one && options.paper.empty())
        fail(ErrorCode::wrong_use, "bench: {} is for --paper; give both", one.name());
    const CliOption one = command.given({"--layers", "--dtype", "--cublas-from"});
    if (one && options.paper.empty() && options.shape.empty())
        fail(ErrorCode::wrong_use, "bench: {} is for --shape and --paper; give one of them as well",
             one.name());
}

}  // namespace

void add_bench_command(const CliCommand& program) {
    auto options = std::make_shared<BenchRun>();
    const CliCommand command = program.add_command(
        "bench", "time decoding: tokens a second, bytes a token, share of the memory bandwidth");
    options->run.add_model(command);
    command.add_option("--shape", options->shape,
                       "instead of a model: random weights of the shape of " + joined(shape_names()));
    command.add_option("--dtype", options->dtype, "number type of random weights")
        .one_of(weight_type_names())
        .shows_default();
    command.add_option("--paper", options->paper,
                       "a paper's table, beside its printed numbers: " + joined(paper_names()));
    command.add_option("--scale", options->scale.tokens, "with --paper: contexts and budgets divided by this")
        .within(1, 1 << 20);
    command.add_option("--scale-batch", options->scale.lanes, "with --paper: batches divided by this")
        .within(1, 1 << 20);
    command.add_option("--layers", options->scale.layers, "with --shape or --paper: only so many layers")
        .within(1, 1 << 20);
    options->run.add_backend(command);
    options->run.add_lanes(command);
    command.add_option("-c,--context", options->context, "tokens of the prompt")
        .within(1, 1 << 20)
        .shows_default();
    command.add_option("-n,--tokens", options->run.n_tokens, "tokens to decode, over all rounds")
        .within(1, 1 << 20)
        .shows_default();
    command.add_option("--batch", options->batch, "lanes of each policy").within(1, 4096).shows_default();
    command.add_option("--rounds", options->rounds, "interleaved rounds").within(1, 1000).shows_default();
    command.add_flag("--prompt", options->prompt,
                     "time the prompt instead of steps: --context tokens, each lane anew in every round");
    command.add_flag("--instrument", options->instrument,
                     "each lane also with attention and score rows of all heads");
    command.add_flag(
        "--scores", options->scores,
        "each lane also without scores, evicting the same tokens: shows what choosing and evicting cost");
    command.add_flag("--parts", options->parts,
                     "also the time of linear layers, attention, scoring and eviction, in steps of their "
                     "own, and what linear "
                     "layers and attention read a second");
    command
        .add_option("--cublas-from", options->cublas_from,
                    "with --shape or --paper on CUDA: number of lanes from which cuBLAS computes the "
                    "products (default: 8)")
        .within(1, 1 << 20);
    command
        .add_option("--executor", options->executor,
                    "none: with --shape, the host's part of a step on CUDA alone; needs no device")
        .one_of({"none"});
    command
        .add_option("--text", options->text,
                    "file, or - for standard input: also time the tokenizer on its text")
        .some_path();
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options, command] {
        check_used(command, *options);
        if (!options->executor.empty())
            bench_host_part(*options);
        else if (!options->paper.empty())
            bench_paper(*options);
        else if (options->prompt)
            bench_prompts(*options);
        else
            bench_lanes(*options);
    });
}

}  // namespace keyhole
