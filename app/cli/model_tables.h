/// Computes what `keyhole info` prints of a model beside its configuration: shapes, memory, and the context
/// and batch that fit. Main thread.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace keyhole {

/// Weights of one name and shape. One row stands for all layers that have this shape.
struct ShapeRow {
    std::string name;
    std::int64_t rows = 0, cols = 0;
    std::string dtype;
    int n = 1;                 ///< number of layers that have it
    std::int64_t n_bytes = 0;  ///< of all layers, as stored
    std::int64_t n_parameters() const { return rows * cols * n; }
};
std::vector<ShapeRow> shape_rows(const Model& model);

/// The memory of one place (RAM or a device), and the context and batch that fit in it.
struct MemoryAnswer {
    std::string where;  ///< "RAM", or the device
    std::int64_t total = 0, available = 0, needed = 0;
    std::int64_t longest_context = 0;  ///< at that batch, in the available memory; at most the model's n_ctx
    bool limited_by_model = false;     ///< memory would allow a longer context
    int largest_batch = 0;             ///< at that context
};

struct MemoryTable {
    std::int64_t context = 0;
    int batch = 1, n_threads = 1;
    std::int64_t weights = 0, cache = 0, scratch = 0;
    std::vector<MemoryAnswer> answers;
};
MemoryTable memory_table(const Model& model, std::int64_t context, int batch);

std::string format_shapes(const std::vector<ShapeRow>& rows);
std::string format_memory(const MemoryTable& table);

}  // namespace keyhole
