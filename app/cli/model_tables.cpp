#include "app/cli/model_tables.h"

#include "engine/backend/memory_need.h"
#include "engine/base/threads.h"
#include "engine/device/open_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace keyhole {
namespace {

std::string size_text(std::int64_t n_bytes) {
    const double megabytes = 1e-6 * static_cast<double>(n_bytes);
    return megabytes < 1000 ? fmt::format("{:.2f} MB", megabytes)
                            : fmt::format("{:.2f} GB", 1e-3 * megabytes);
}

MemoryAnswer answer(const Model& model, const MemoryTable& table, std::string where, std::int64_t total,
                    std::int64_t available) {
    MemoryAnswer out{std::move(where), total, available, table.weights + table.cache + table.scratch};
    out.longest_context = longest_context(model, table.batch, table.n_threads, available);
    // The engine refuses a prompt beyond the model's context, even if memory allows it.
    out.limited_by_model = out.longest_context > model.config().n_ctx;
    if (out.limited_by_model) out.longest_context = model.config().n_ctx;
    out.largest_batch = largest_batch(model, table.context, table.n_threads, available);
    return out;
}

}  // namespace

std::vector<ShapeRow> shape_rows(const Model& model) {
    std::vector<ShapeRow> rows;
    const auto add = [&](const std::string& name, const Weight& w) {
        if (w.data == nullptr) return;
        const std::string dtype(dtype_name(w.dtype));
        const auto same = std::find_if(rows.begin(), rows.end(), [&](const ShapeRow& row) {
            return row.name == name && row.rows == w.rows && row.cols == w.cols && row.dtype == dtype;
        });
        if (same == rows.end()) {
            rows.push_back({name, w.rows, w.cols, dtype, 1, stored_bytes(w)});
        } else {
            ++same->n;
            same->n_bytes += stored_bytes(w);
        }
    };
    const ModelWeights& w = model.weights();
    add("embedding", w.embedding);
    add("embedding norm", w.embedding_norm);
    add("embedding norm bias", w.embedding_norm_bias);
    add("position embedding", w.position_embedding);
    add("project in", w.project_in);
    for (const LayerWeights& l : w.layers) {
        add("attention norm", l.attention_norm);
        add("attention norm bias", l.attention_norm_bias);
        add("q", l.q);
        add("k", l.k);
        add("v", l.v);
        add("q bias", l.q_bias);
        add("k bias", l.k_bias);
        add("v bias", l.v_bias);
        add("q norm", l.q_norm);
        add("k norm", l.k_norm);
        add("sinks", l.sinks);
        add("o", l.o);
        add("o bias", l.o_bias);
        add("attention out norm", l.attention_out_norm);
        add("MLP norm", l.mlp_norm);
        add("MLP norm bias", l.mlp_norm_bias);
        add("gate", l.gate);
        add("up", l.up);
        add("gate bias", l.gate_bias);
        add("up bias", l.up_bias);
        add("down", l.down);
        add("down bias", l.down_bias);
        add("router", l.router);
        add("router bias", l.router_bias);
        for (const ExpertWeights& e : l.experts) {
            add("expert gate", e.gate);
            add("expert up", e.up);
            add("expert gate bias", e.gate_bias);
            add("expert up bias", e.up_bias);
            add("expert down", e.down);
            add("expert down bias", e.down_bias);
        }
        add("MLP out norm", l.mlp_out_norm);
    }
    add("final norm", w.final_norm);
    add("final norm bias", w.final_norm_bias);
    add("project out", w.project_out);
    if (w.output.data != w.embedding.data) add("output", w.output);
    add("output bias", w.output_bias);
    return rows;
}

MemoryTable memory_table(const Model& model, std::int64_t context, int batch) {
    MemoryTable table;
    table.context = context;
    table.batch = batch;
    table.n_threads = ThreadPool().n_threads();
    const MemoryNeed need = memory_need(model, context, batch, table.n_threads);
    table.weights = need.weights;
    table.cache = need.cache;
    table.scratch = need.scratch;
    const SystemMemory ram = system_memory();
    table.answers.push_back(answer(model, table, "RAM", ram.total, ram.available));
    std::string reason;
    if (const auto device = open_cuda_device(cuda_module_path(), 0, reason)) {
        const MemoryUse memory = device->memory();
        // Matrices have the type of the file there too.
        table.answers.push_back(
            answer(model, table, device->identity().name, memory.total_bytes, memory.free_bytes));
    }
    return table;
}

std::string format_shapes(const std::vector<ShapeRow>& rows) {
    std::string text = fmt::format("{:<22}{:>8}{:>18}{:>8}{:>16}{:>12}\n", "weights", "layers", "shape",
                                   "type", "parameters", "size");
    std::map<std::string, std::pair<int, std::int64_t>> of_type;
    for (const ShapeRow& row : rows) {
        const std::string shape =
            row.cols == 1 ? fmt::format("[{}]", row.rows) : fmt::format("[{}, {}]", row.rows, row.cols);
        text += fmt::format("{:<22}{:>8}{:>18}{:>8}{:>16}{:>12}\n", row.name, row.n, shape, row.dtype,
                            row.n_parameters(), size_text(row.n_bytes));
        of_type[row.dtype].first += row.n;
        of_type[row.dtype].second += row.n_bytes;
    }
    text += "types:";
    for (const auto& [dtype, sum] : of_type)
        text += fmt::format("{} {} {} in {} tensor{}", text.ends_with(':') ? "" : ",", dtype,
                            size_text(sum.second), sum.first, sum.first == 1 ? "" : "s");
    text += "\n";
    return text;
}

std::string format_memory(const MemoryTable& t) {
    const std::int64_t total = t.weights + t.cache + t.scratch;
    std::string text = fmt::format(
        "memory for {} lane{} of {} tokens, full cache: {} = weights {} + keys, values, positions and "
        "scores {} + scratch of the prompt {}\n",
        t.batch, t.batch == 1 ? "" : "s", t.context, size_text(total), size_text(t.weights),
        size_text(t.cache), size_text(t.scratch));
    for (const MemoryAnswer& a : t.answers) {
        text += fmt::format(
            "{}, {} of {} free: {}; at most {} tokens{} with {} lane{}, {} lane{} of {} tokens\n", a.where,
            size_text(a.available), size_text(a.total), a.needed <= a.available ? "fits" : "does not fit",
            a.longest_context, a.limited_by_model ? " (the model's context)" : "", t.batch,
            t.batch == 1 ? "" : "s", a.largest_batch, a.largest_batch == 1 ? "" : "s", t.context);
    }
    return text;
}

}  // namespace keyhole
