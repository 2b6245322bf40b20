/// What every --json of a command begins with. Any thread.
#pragma once

#include "app/base/command_text.h"
#include "app/base/version.h"
#include "engine/model/model.h"

#include <nlohmann/json.hpp>

#include <string>

namespace keyhole {

/// Returns the program's version, the command, the model and the backend: what a result depends on.
inline nlohmann::json json_head(const Model& model, const std::string& backend) {
    return {{"version", program_version()},
            {"command", command_text()},
            {"model", model.path().string()},
            {"model_hash", model.hash()},
            {"backend", backend}};
}

}  // namespace keyhole
