#include "app/base/version.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

constexpr const char* kCommit =
#include KH_COMMIT_FILE
    ;

}  // namespace

std::string program_version() {
    const std::string commit = kCommit;
    return commit.empty() ? KH_VERSION : fmt::format("{} ({})", KH_VERSION, commit);
}

std::string program_name() {
    return fmt::format("Keyhole {}", program_version());
}

}  // namespace keyhole
