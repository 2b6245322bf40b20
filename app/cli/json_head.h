/// What every --json of a command begins with. Any thread.
#pragma once

#include "app/base/version.h"
#include "engine/model/model.h"

#include <nlohmann/json.hpp>

#include <string>

namespace keyhole {

/// Returns the program's version, the model and the backend: what a result depends on besides its options.
inline nlohmann::json json_head(const Model& model, const std::string& backend) {
    return {{"version", program_version()},
            {"model", model.path().string()},
            {"model_hash", model.hash()},
            {"backend", backend}};
}

}  // namespace keyhole
