/// A model by its shapes, without memory for its weights. Any thread.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

namespace keyhole {

class Checkpoint;

/// A model whose shapes are known, and whose weights may not be in memory: see Checkpoint::make_copies().
struct DescribedModel {
    std::shared_ptr<const Model> model;
    std::shared_ptr<Checkpoint> checkpoint;
    /// Returns the bytes of weights that load_model() copies, because the file has them in another order.
    std::int64_t copied_bytes() const;
};

/// Reads what load_model() reads, and takes no memory for weights, whose data must not be read. For a model
/// of any size. Throws as load_model().
DescribedModel describe_model(const std::filesystem::path& path);

/// Loads as load_model(path) does. progress receives 0..1 while weights are copied that the file has in
/// another order; the others are mapped, which takes no time.
std::shared_ptr<const Model> load_model(const std::filesystem::path& path,
                                        const std::function<void(double)>& progress);

}  // namespace keyhole
