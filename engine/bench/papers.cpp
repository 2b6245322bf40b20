#include "engine/bench/papers.h"

#include "engine/base/error.h"
#include "engine/policy/lane_spec.h"

#include <algorithm>

namespace keyhole {
namespace {

/// The paper generates as many tokens as the prompt has, so the middle of the run is at one and a half
/// prompts. Budgets are shares of the prompt.
PaperGroup keyformer_group(int prompt, int n_lanes, const char* full, const char* h2o,
                           const char* keyformer) {
    const int context = prompt * 3 / 2;
    return {
        fmt::format("{} + {}, batch {}", prompt, prompt, n_lanes),
        {{"full attention", "full", n_lanes, context, 0, 0, full},
         {"H2O, 90 % KV cache", fmt::format("h2o:budget={}", prompt * 9 / 10), n_lanes, context, 0, 0, h2o},
         {"Keyformer, 50 % KV cache", fmt::format("keyformer:budget={}", prompt / 2), n_lanes, context, 0, 0,
          keyformer}}};
}

PaperRun keyformer_table1() {
    return {
        "keyformer-table1",
        "Keyformer, table 1: generation throughput of MPT-7B (one A100 with 80 GB)",
        "tokens/s",
        "mpt-7b",
        false,
        {keyformer_group(1024, 1, "24.9", "27.8", "32.0"), keyformer_group(2048, 1, "15.0", "20.5", "24.3"),
         keyformer_group(4096, 1, "8.3", "14.1", "17.0"), keyformer_group(4096, 2, "OOM", "OOM", "19.85")}};
}

PaperRun keyformer_figure10() {
    return {"keyformer-figure10",
            "Keyformer, figure 10: time of KV movement and scaled dot product at 50 % KV cache, with what "
            "the score function adds "
            "(MPT-7B-storywriter; at 4k the paper says 2.9x less movement, 1.3x faster products)",
            "as text",
            "mpt-7b",
            true,
            {{"context 1,024",
              {{"full attention", "full", 1, 1024, 0, 0, "1"},
               {"Keyformer, 50 %", "keyformer:budget=512", 1, 1024, 0, 0, "-"}}},
             {"context 2,048",
              {{"full attention", "full", 1, 2048, 0, 0, "1"},
               {"Keyformer, 50 %", "keyformer:budget=1024", 1, 2048, 0, 0, "-"}}},
             {"context 4,096",
              {{"full attention", "full", 1, 4096, 0, 0, "1"},
               {"Keyformer, 50 %", "keyformer:budget=2048", 1, 4096, 0, 0, "-"}}}}};
}

/// Sequences of 4,096 tokens are decoded from their first token. So a full cache holds 2,048 tokens on
/// average, one limited to 2,048 holds three quarters of that, and smaller ones hold nearly all of their
/// budget.
PaperRun tova_table1() {
    PaperGroup group{"sequences of 4,096 at the paper's largest batch", {}};
    group.lines = {{"full (4,096)", "full", 8, 2048, 0, 0, "1.0"},
                   {"2,048 states", "tova:budget=1536", 17, 1600, 0, 0, "1.7"},
                   {"1,024 states", "tova:budget=896", 35, 960, 0, 0, "3.1"},
                   {"512 states", "tova:budget=480", 70, 544, 0, 0, "4.8"},
                   {"256 states", "tova:budget=248", 139, 312, 0, 0, "8.5"}};
    return {"tova-table1", "TOVA, table 1: decoding throughput of LLaMA-2-7B (one V100)",
            "times full",  "llama-2-7b",
            false,         {group}};
}

PaperRun mlkv(const char* name, const char* source, const char* unit, bool memory) {
    // Figure 3 prints the largest batch for three of them; figure 5 is a bar chart without numbers.
    const struct {
        const char* label;
        int kv_heads, kv_layers;
        const char* batch;
    } variants[] = {{"MHA, 144 KV heads", 12, 12, "48"},
                    {"GQA-48", 4, 12, "-"},
                    {"MLKV-48", 12, 4, "-"},
                    {"MQA-12", 1, 12, "-"},
                    {"MLKV-12", 3, 4, "-"},
                    {"MLKV-6", 1, 6, "-"},
                    {"MLKV-4", 1, 4, "-"},
                    {"MLKV-2", 1, 2, "940"},
                    {"MLKV-1", 1, 1, "1100"}};
    PaperGroup group{"2,000 tokens, batch 8", {}};
    for (const auto& v : variants)
        group.lines.push_back({v.label, "full", 8, 2000, v.kv_heads, v.kv_layers, memory ? v.batch : "-"});
    return {name, source, unit, "pythia-160m", false, {group}};
}

}  // namespace

std::vector<std::string_view> paper_names() {
    return {"keyformer-table1", "keyformer-figure10", "tova-table1", "mlkv-figure3", "mlkv-figure5"};
}

PaperRun paper_run(std::string_view name) {
    if (name == "keyformer-table1") return keyformer_table1();
    if (name == "keyformer-figure10") return keyformer_figure10();
    if (name == "tova-table1") return tova_table1();
    if (name == "mlkv-figure3")
        return mlkv(
            "mlkv-figure3",
            "MLKV, figure 3: memory by batch and the largest batch in 12 GB, Pythia-160M (one RTX 3060)",
            "largest batch", true);
    if (name == "mlkv-figure5")
        return mlkv("mlkv-figure5", "MLKV, figure 5: tokens a second at batch 8, Pythia-160M (one RTX 3060)",
                    "no number printed", false);
    std::string names;
    for (const std::string_view known : paper_names())
        names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
    fail(ErrorCode::wrong_use, "there is no table '{}'; take one of {}", name, names);
}

std::string scale_down(PaperRun& run, ModelShape& shape, const PaperScale& scale) {
    std::vector<std::string> said;
    if (scale.tokens > 1) said.push_back(fmt::format("contexts and budgets 1/{}", scale.tokens));
    if (scale.lanes > 1) said.push_back(fmt::format("batches 1/{}, at least 1", scale.lanes));
    if (scale.layers > 0 && scale.layers < shape.config.n_layers) {
        said.push_back(fmt::format("{} of {} layers", scale.layers, shape.config.n_layers));
        for (PaperGroup& group : run.groups)
            for (PaperLine& line : group.lines)
                if (line.n_kv_layers > 0)
                    line.n_kv_layers = std::max(1, line.n_kv_layers * scale.layers / shape.config.n_layers);
        shape.config.n_layers = scale.layers;
    }
    for (PaperGroup& group : run.groups)
        for (PaperLine& line : group.lines) {
            line.context = std::max(1, line.context / scale.tokens);
            line.n_lanes = std::max(1, line.n_lanes / scale.lanes);
            LaneSpec spec = parse_lane_spec(line.lane);
            if (spec.policy.preset == Preset::full) continue;
            const auto at = line.lane.find("budget=");
            const int budget = std::stoi(line.lane.substr(at + 7));
            line.lane =
                fmt::format("{}budget={}", line.lane.substr(0, at), std::max(2, budget / scale.tokens));
        }
    std::string text;
    for (const std::string& part : said) text += (text.empty() ? "" : ", ") + part;
    return text;
}

ModelShape with_kv_heads(ModelShape shape, const PaperLine& line) {
    if (line.n_kv_heads > 0) shape.config.n_kv_heads = line.n_kv_heads;
    if (line.n_kv_layers > 0 && line.n_kv_layers < shape.config.n_layers) {
        shape.config.n_kv_layers = line.n_kv_layers;
        shape.config.borrows_unrotated = true;
    }
    return shape;
}

}  // namespace keyhole
