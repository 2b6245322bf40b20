/// Chooses a backend at run time. Engine thread only.
#pragma once

#include "engine/base/backend_options.h"

#include <memory>
#include <string>

namespace keyhole {

class Backend;
class Model;

namespace cuda {
struct ProductOptions;
}

/// Creates the backend. `automatic` takes CUDA where the module, a driver and a device exist that has passed
/// its proof and is faster than the CPU (prover.h); otherwise it takes the CPU and, where there is a driver,
/// writes the reason to *notice. An explicit `cuda` that is not available throws Error(device). products: for
/// benches on CUDA; null: default.
std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options,
                                      std::string* notice, const cuda::ProductOptions* products = nullptr);

}  // namespace keyhole
