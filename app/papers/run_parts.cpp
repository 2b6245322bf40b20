#include "app/papers/run_parts.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

namespace keyhole::figure_parts {

Plane attention_matrix(const RunHistory& run, int layer, int head) {
    const int n_prompt = run.n_prompt(), n = run.last_row() + 1;
    const auto& prompt = run.steps().front()->prompt_rows;
    if (prompt == nullptr || prompt->reduction != 1)
        fail(ErrorCode::wrong_use, "the prompt of {} tokens is too long for this figure; give a shorter one",
             n_prompt);
    Plane plane(n, n, 0);
    const std::size_t size = to_index(prompt->size);
    const std::size_t from = to_index(layer * run.run().config.n_heads + head) * size * size;
    for (int row = 0; row < n_prompt; ++row)
        for (int p = 0; p <= row; ++p)
            plane.at(p, row) = float_from_fp16(prompt->attention[from + to_index(row) * size + to_index(p)]);
    std::vector<float> line(to_index(n));
    for (int row = n_prompt; row < n; ++row) {
        if (!run.attention_row(0, row, layer, head, line)) continue;
        for (int p = 0; p <= row; ++p) plane.at(p, row) = line[to_index(p)];
    }
    return plane;
}

void each_head(const RunHistory& run, const std::function<void(int, int)>& each) {
    for (int layer = 0; layer < run.run().config.n_layers; ++layer)
        for (int head = 0; head < run.run().config.n_heads; ++head) each(layer, head);
}

std::string lane_title(const std::string& spec) {
    const std::size_t equals = spec.find('=');
    return equals < spec.find(':') ? spec.substr(0, equals) : spec;
}

std::string run_subtitle(const RunHistory& run) {
    return fmt::format("{}, {} + {} tokens", model_name(run.run().model_path), run.n_prompt(),
                       run.last_row() + 1 - run.n_prompt());
}

int stored_tokens(const RunHistory& run, int lane) {
    int n = 0;
    for (int p = 0; p <= run.last_row(); ++p) n += run.stored(lane, 0, p, run.last_row()) ? 1 : 0;
    return n;
}

double entropy_of(std::span<const double> p) {
    double h = 0;
    for (const double v : p)
        if (v > 0) h -= v * std::log(v);
    return h;
}

AttentionRows rows_of_run(const RunHistory& run, int lane) {
    AttentionRows rows;
    rows.n_layers = run.run().config.n_layers;
    rows.rows_of_layer =
        std::int64_t{run.last_row() + 1 - run.n_prompt()} * std::int64_t{run.run().config.n_heads};
    rows.subtitle = run_subtitle(run);
    rows.for_each = [&run, lane](const std::function<void(int, std::span<const float>)>& each) {
        std::vector<float> line(to_index(run.last_row() + 1));
        for (int row = run.n_prompt(); row <= run.last_row(); ++row)
            each_head(run, [&](int layer, int head) {
                if (run.attention_row(lane, row, layer, head, line))
                    each(layer, std::span<const float>(line).first(to_index(row) + 1));
            });
    };
    return rows;
}

}  // namespace keyhole::figure_parts
