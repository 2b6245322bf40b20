/// The error of a picture whose size is too small for what it shows. An export can leave it out and write the
/// rest. Any thread; knows base only.
#pragma once

#include "engine/base/error.h"

#include <string>

namespace keyhole {

class NoRoom final : public Error {
  public:
    explicit NoRoom(const std::string& message) : Error(ErrorCode::wrong_use, message) {}
};

}  // namespace keyhole
