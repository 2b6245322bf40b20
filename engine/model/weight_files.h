/// The files that a loaded model's weights are mapped from, and whether they are still what was loaded. Any
/// thread.
#pragma once

#include "engine/model/model.h"

#include <vector>

namespace keyhole {

/// The mappings that weights of a model lie in. They hold as long as the model does. Throws nothing.
class WeightFiles {
  public:
    WeightFiles() = default;
    explicit WeightFiles(const Model& model);

    /// Throws Error(bad_file) naming a file that was cut or written to: see check_mapping(). A few
    /// microseconds.
    void check() const;
    bool unchanged() const;

  private:
    std::vector<const void*> mappings_;
};

}  // namespace keyhole
