#include "app/view/model_words.h"

#include "engine/base/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace keyhole {

std::string sliding_words(const ModelConfig& config, int budget) {
    const int kept = budget > 0 ? budget : std::numeric_limits<int>::max();
    int n_layers = 0, window = 0;
    for (const int of_layer : config.window) {
        if (of_layer <= 0 || of_layer >= kept) continue;
        ++n_layers;
        window = std::max(window, of_layer);
    }
    if (n_layers == 0) return {};
    return fmt::format(
        "{} of {} layers slide: there a step sees the newest {} tokens, so the budget is at most {}",
        n_layers, config.n_layers, window, window);
}

std::string no_sinks_text(std::string_view measure) {
    return fmt::format("'{}' has no curve here: the model has no learned sinks", measure);
}

std::string expert_words(const ModelConfig& config, const LaneRecord& record, int layer) {
    const auto n = to_index(config.n_experts_used);
    if (n == 0 || record.experts.size() != n * to_index(config.n_layers)) return {};
    const auto first = record.experts.begin() + static_cast<std::ptrdiff_t>(to_index(layer) * n);
    const std::vector<int> chosen(first, first + static_cast<std::ptrdiff_t>(n));
    if (chosen.front() == RowOutput::kNoExpert) return "none";
    return fmt::format("{} of {}", fmt::join(chosen, ", "), config.n_experts);
}

std::string all_expert_words(const ModelConfig& config, const LaneRecord& record) {
    std::string lines;
    for (int layer = 0; layer < config.n_layers; ++layer)
        if (const std::string words = expert_words(config, record, layer); !words.empty())
            lines += fmt::format("{}layer {}: {}", lines.empty() ? "" : "\n", layer, words);
    return lines;
}

}  // namespace keyhole
