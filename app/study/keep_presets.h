/// Runs one prompt with every preset at one budget, and says what a head stores right after it. Main thread.
#pragma once

#include "app/base/kept_pictures.h"
#include "engine/backend/backend.h"
#include "engine/run/prompt_file.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace keyhole {

/// names: of the model and the prompt, for readers. head: layer and query head; nullopt: the one that matters
/// most to the end of the prompt. A preset that cannot run has the reason in place of a picture.
KeptPictures keep_by_presets(const std::shared_ptr<const Model>& model, Backend& backend,
                             const PromptFile& prompt, int budget,
                             const std::pair<std::string, std::string>& names,
                             std::optional<std::pair<int, int>> head = std::nullopt);

}  // namespace keyhole
