/// What the step on the device lacks of a model. A pure function; any thread.
#pragma once

#include "engine/model/model.h"

#include <string>

namespace keyhole::cuda {

/// Returns what the step on the device cannot compute of the model's description, whatever the types of its
/// weights, as the object of "has"; empty: it computes all of it.
std::string missing_part(const Model& model);

}  // namespace keyhole::cuda
