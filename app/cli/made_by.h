/// What made a file, as pictures and tables carry it themselves. Any thread; knows no window.
#pragma once

#include "engine/model/model.h"

#include <span>
#include <string>

namespace keyhole {

/// Returns "keyhole-base, 0123456789abcdef": a model's name and hash.
std::string model_mark(const Model& model);
/// Returns "Keyhole 0.1 (0123456789): keyhole sweep ... --out OUT; model keyhole-base, 0123456789abcdef".
/// models: marks.
std::string made_by(std::span<const std::string> models);
std::string made_by(const Model& model);

}  // namespace keyhole
