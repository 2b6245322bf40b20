#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/model_option.h"
#include "app/cli/model_tables.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/resource_use.h"
#include "engine/live/engine.h"
#include "engine/model/described_model.h"
#include "engine/model/kv_default.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace keyhole {

namespace {

struct Sharing {
    std::string name;
    std::int64_t kv_heads;  // in the whole model
};

/// Returns the KV bytes of one token: 2 * KV heads of the model * bytes of a row of the type
/// (MLKV, equation of section 3: 2 b s m g d).
std::int64_t bytes_per_token(ModelConfig c, std::int64_t kv_heads, KvType type) {
    c.n_layers = c.n_kv_layers = 1;  // one layer that owns all KV heads needs the same memory
    c.n_kv_heads = static_cast<int>(kv_heads);
    return kv_bytes_per_token(c, type);
}

nlohmann::json shapes_json(const std::vector<ShapeRow>& rows) {
    nlohmann::json json = nlohmann::json::array();
    for (const ShapeRow& row : rows)
        json.push_back({{"name", row.name},
                        {"layers", row.n},
                        {"shape", row.cols == 1 ? std::vector{row.rows} : std::vector{row.rows, row.cols}},
                        {"dtype", row.dtype},
                        {"parameters", row.n_parameters()},
                        {"bytes", row.n_bytes}});
    return json;
}

nlohmann::json memory_json(const MemoryTable& t) {
    nlohmann::json json = {{"context", t.context},
                           {"batch", t.batch},
                           {"threads", t.n_threads},
                           {"weights_bytes", t.weights},
                           {"cache_bytes", t.cache},
                           {"scratch_bytes", t.scratch},
                           {"total_bytes", t.weights + t.cache + t.scratch}};
    for (const MemoryAnswer& a : t.answers)
        json["machine"].push_back({{"where", a.where},
                                   {"total_bytes", a.total},
                                   {"available_bytes", a.available},
                                   {"fits", a.needed <= a.available},
                                   {"longest_context", a.longest_context},
                                   {"largest_batch", a.largest_batch}});
    return json;
}

/// Returns how a model's rotary frequencies differ from those of its base, which is how it reads longer texts
/// than it was first trained on; empty: they do not.
std::string rope_scaling_text(const ModelConfig& c) {
    const Rotary& rotary = c.rotary;
    if (rotary.dynamic_factor > 0)
        return fmt::format(", dynamic scaling by {:g} in texts beyond {} tokens", rotary.dynamic_factor,
                           rotary.switch_length);
    double least = 1, most = 1;
    for (std::size_t i = 0; i < rotary.inverse_frequency.size(); ++i) {
        const double plain =
            std::pow(static_cast<double>(c.rope_theta), -2.0 * static_cast<double>(i) / rotary.dims);
        const double divided_by = plain / rotary.inverse_frequency[i];
        least = i == 0 ? divided_by : std::min(least, divided_by);
        most = i == 0 ? divided_by : std::max(most, divided_by);
    }
    constexpr double kRounding = 1e-4;
    std::string text;
    if (rotary.changes_with_length())
        text = fmt::format(", longrope: other frequencies in texts beyond {} tokens", rotary.switch_length);
    else if (most / least > 1 + kRounding)
        text = fmt::format(
            ", frequencies scaled by wavelength, divided by {:.3g} to {:.3g} (as YaRN and Llama 3)", least,
            most);
    else if (std::abs(most - 1) > kRounding)
        text = fmt::format(", linear scaling by {:.4g}", most);
    if (rotary.magnitude != 1.0f) text += fmt::format(", rotated values times {:.4g}", rotary.magnitude);
    return text;
}

std::string positions_text(const ModelConfig& c) {
    std::string text;
    switch (c.positions) {
        case PositionKind::rotary:
            text = fmt::format("rotary positions over {} of {} dimensions, base {:g}", c.rotary.dims,
                               c.head_dim, c.rope_theta) +
                   rope_scaling_text(c);
            break;
        case PositionKind::alibi:
            text = "ALiBi";
            break;
        case PositionKind::learned:
            text = "learned positions";
            break;
    }
    const auto widest = std::max_element(c.window.begin(), c.window.end());
    if (widest != c.window.end() && *widest > 0)
        text += fmt::format(", sliding window of {} in {} of {} layers", *widest,
                            std::count_if(c.window.begin(), c.window.end(), [](int w) { return w > 0; }),
                            c.n_layers) +
                " (a budget there is at most the window)";
    if (const auto n = std::count(c.unrotated.begin(), c.unrotated.end(), true); n > 0)
        text += fmt::format(", no rotation in {} of {} layers", n, c.n_layers);
    if (c.n_experts > 0) text += fmt::format("; {} of {} experts a token", c.n_experts_used, c.n_experts);
    if (c.has_sinks) text += "; a learned sink for each query head";
    return text;
}

/// Returns the limits of what the window stores beside weights and caches.
std::string window_limits_text() {
    return fmt::format(
        "the window keeps at most {} MB of recorded attention and scores and {} MB of states to rewind to; "
        "F5 in the window lists all parts\n",
        Recorder::kRowBudgetBytes >> 20, kCheckpointBytes >> 20);
}

/// Says beforehand why the other commands will refuse the model.
void warn_of_copies(const DescribedModel& described) {
    const std::int64_t available = system_memory().available, copied = described.copied_bytes();
    if (copied > available && available > 0)
        print_warning(
            fmt::format("{} does not fit into memory: {} of its weights must be copied into another order, "
                        "and {} are free",
                        described.model->path().string(), memory_text(copied), memory_text(available)));
}

/// The options of `keyhole info`.
struct InfoOptions {
    RunOptions run;
    std::string name;  // the model as an argument without an option
    bool json = false, of_lanes = false;
    std::int64_t context = 0;  // 0: the model's n_ctx
    int batch = 1;
};

void run_info(const InfoOptions& options) {
    const bool as_json = options.json;
    const DescribedModel described = describe_model(model_path(options.run));
    const std::shared_ptr<const Model>& model = described.model;
    print_warnings(*model);
    warn_of_copies(described);
    const ModelConfig& c = model->config();
    const MemoryTable memory =
        memory_table(*model, options.context > 0 ? options.context : c.n_ctx, options.batch);
    const std::int64_t layers = c.n_layers;
    std::vector<Sharing> sharings = {{"this model", model->layout().n_kv_heads()},
                                     {"MHA", layers * c.n_heads}};
    if (c.n_heads % 2 == 0 && c.n_heads > 2) sharings.push_back({"GQA, 2 a layer", layers * 2});
    sharings.push_back({"MQA", layers});
    if (layers >= 2) sharings.push_back({"MLKV, half the layers", layers / 2});
    sharings.push_back({"MLKV, 1 layer", 1});
    const std::string dtype(dtype_name(model->weights().layers.front().q.dtype));

    if (as_json) {
        nlohmann::json json = {{"version", program_version()},
                               {"model", model->path().string()},
                               {"path", model->path().string()},
                               {"hash", model->hash()},
                               {"family", c.family},
                               {"parameters", model->n_parameters()},
                               {"dtype", dtype},
                               {"n_layers", c.n_layers},
                               {"n_heads", c.n_heads},
                               {"n_kv_heads", c.n_kv_heads},
                               {"head_dim", c.head_dim},
                               {"d_model", c.d_model},
                               {"d_ff", c.d_ff},
                               {"n_vocab", c.n_vocab},
                               {"n_ctx", c.n_ctx},
                               {"positions", positions_text(c)},
                               {"rope_theta", c.rope_theta},
                               {"norm_eps", c.norm_eps},
                               {"tied", c.tied},
                               {"bos", c.bos},
                               {"eos", c.eos}};
        for (const Sharing& s : sharings)
            json["kv_bytes_per_token"].push_back({{"sharing", s.name},
                                                  {"kv_heads", s.kv_heads},
                                                  {"f32", bytes_per_token(c, s.kv_heads, KvType::f32)},
                                                  {"f16", bytes_per_token(c, s.kv_heads, KvType::f16)},
                                                  {"q8", bytes_per_token(c, s.kv_heads, KvType::q8)}});
        json["weights"] = shapes_json(shape_rows(*model));
        json["memory"] = memory_json(memory);
        json["memory"]["copied_bytes"] = described.copied_bytes();
        json["window_limits"] = {{"recorded_rows", Recorder::kRowBudgetBytes},
                                 {"checkpoints", kCheckpointBytes}};
        json["warnings"] = model->warnings();
        // A path may be invalid UTF-8.
        print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
        return;
    }
    print_out("{}\n  {}, {:.2f} M parameters, {}{}, hash {}\n", printable_text(model->path().string()),
              c.family, 1e-6 * static_cast<double>(model->n_parameters()), dtype,
              c.tied ? ", tied embeddings" : "", model->hash());
    print_out("  {} layers, {} query heads, {} KV heads a layer, head size {}, width {}, feed-forward {}\n",
              c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.d_model, c.d_ff);
    print_out("  vocabulary {}, context {}, {}, norm epsilon {:g}\n\n", c.n_vocab, c.n_ctx, positions_text(c),
              c.norm_eps);
    const int contexts[] = {c.n_ctx / 4, c.n_ctx, 4 * c.n_ctx};
    const KvType own = kv_type_for(KvType::automatic, *model);
    print_out(
        "KV cache, bytes a token = 2 x KV heads x bytes of head size numbers, by kv_dtype (auto is "
        "{}):\n{:<24}{:>10}{:>10}{:>10}{:>10}",
        kv_type_name(own), "sharing", "KV heads", "f32", "f16, bf16", "q8");
    for (int n : contexts) print_out("{:>12} tok", n);
    print_out("\n");
    for (const Sharing& s : sharings) {
        const std::int64_t bytes = bytes_per_token(c, s.kv_heads, own);
        print_out("{:<24}{:>10}", s.name, s.kv_heads);
        for (const KvType type : {KvType::f32, KvType::f16, KvType::q8})
            print_out("{:>10}", bytes_per_token(c, s.kv_heads, type));
        for (int n : contexts) print_out("{:>13.2f} MB", 1e-6 * static_cast<double>(bytes * n));
        print_out("\n");
    }
    print_out("\n{}{}\n{}", format_memory(memory), window_limits_text(), format_shapes(shape_rows(*model)));
}

/// Prints the options of a lane spec, from the tables that the window's policy card also uses.
void run_options(bool as_json) {
    if (as_json) {
        nlohmann::json json = {{"version", program_version()}};
        for (const PresetRow& row : presets())
            json["presets"].push_back({{"name", row.name},
                                       {"spec", format_lane_spec({preset_params(row.preset)})},
                                       {"help", row.help},
                                       {"has_released", has_released_code(row.preset)},
                                       {"released", dialect_help(row.preset)}});
        for (const LaneOption& option : lane_options())
            json["options"].push_back({{"name", option.name},
                                       {"values", option_values(option)},
                                       {"help", option.help},
                                       {"paper", option.paper}});
        print_out("{}\n", json.dump(2));
        return;
    }
    print_out(
        "A lane is preset[:key=value[,key=value]...], such as "
        "keyformer:budget=64,dialect=released.\n\nPresets\n");
    for (const PresetRow& row : presets()) {
        print_out("  {:<12}{}\n", row.name, row.help);
        if (!row.released.empty()) print_out("  {:<12}dialect=released: {}\n", "", row.released);
    }
    print_out("\nKeys\n");
    for (const LaneOption& option : lane_keys())
        print_out("  {:<12}{}\n  {:<12}Values: {}.  From: {}.\n", option.name, option.help, "",
                  option_values(option), option.paper);
    std::vector<std::string_view> by_head = override_names();
    const std::string_view last = by_head.back();
    by_head.pop_back();
    print_out(
        "\n{} and {} may differ for some layers and heads: alpha@L0-3.H2=0.5. Values with commas or blanks "
        "stand in parentheses.\n",
        fmt::join(by_head, ", "), last);
}

}  // namespace

void add_info_command(const CliCommand& program) {
    auto options = std::make_shared<InfoOptions>();
    const CliCommand command = program.add_command(
        "info", "print configuration, shapes, KV bytes a token and memory of a model; or what a lane can be");
    options->run.add_model(command);
    command.add_option("MODEL", options->name, "the same as --model")
        .some_path()
        .excludes(command.option("--model"));
    command
        .add_option("-c,--context", options->context,
                    "tokens of a lane, for the memory needed (default: the model's context)")
        .within(1, 1 << 30);
    command.add_option("--batch", options->batch, "lanes with the full cache, for the memory needed")
        .within(1, 1 << 20);
    command.add_flag("--json", options->json, "print the result as JSON");
    command.add_flag("--options", options->of_lanes,
                     "presets, dialects and keys of a lane spec, with papers, instead of a model");
    command.does([options] {
        if (!options->name.empty()) options->run.model = options->name;
        options->of_lanes ? run_options(options->json) : run_info(*options);
    });
}

}  // namespace keyhole
