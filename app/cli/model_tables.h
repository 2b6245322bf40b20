/// What `keyhole info` says of a model beside its configuration: shapes, memory, what fits. Main thread.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace keyhole {

/// Weights of one name and shape: those of the first layer stand for all layers of that shape.
struct ShapeRow {
    std::string name;
    std::int64_t rows = 0, cols = 0;
    std::string dtype;
    int n = 1;  ///< layers that have it
    std::int64_t n_parameters() const { return rows * cols * n; }
};
std::vector<ShapeRow> shape_rows(const Model& model);

/// Memory at a context and batch, and what of it fits a processor or device.
struct MemoryAnswer {
    std::string where;  ///< "RAM", or the device
    std::int64_t total = 0, available = 0, needed = 0;
    std::int64_t longest_context = 0;  ///< at that batch, in what is available; at most the model's
    bool limited_by_model = false;     ///< memory would take a longer one
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
