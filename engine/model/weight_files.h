/// The mapped files that hold a loaded model's weights, and a check that they are unchanged. Any thread.
/// Knows model only.
#pragma once

#include "engine/model/model.h"

#include <vector>

namespace keyhole {

/// The mappings that contain the weights of a model; valid as long as the model. The constructor never
/// throws an Error.
class WeightFiles {
  public:
    WeightFiles() = default;
    explicit WeightFiles(const Model& model);

    /// Throws Error(bad_file) with the name of a file that was truncated or written to: see
    /// check_mapping(). Takes a few microseconds.
    void check() const;
    bool unchanged() const;

  private:
    std::vector<const void*> mappings_;
};

}  // namespace keyhole
