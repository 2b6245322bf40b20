#include "app/cli/made_by.h"

#include "app/base/command_text.h"
#include "app/base/version.h"
#include "engine/base/model_name.h"

#include <fmt/ranges.h>

namespace keyhole {

std::string model_mark(const Model& model) {
    return fmt::format("{}, {}", model_name(model.path()), model.hash());
}

std::string made_by(std::span<const std::string> models) {
    return fmt::format("{}: {}; model {}", program_name(), command_text(), fmt::join(models, "; model "));
}

std::string made_by(const Model& model) {
    const std::string mark = model_mark(model);
    return made_by(std::span(&mark, 1));
}

}  // namespace keyhole
