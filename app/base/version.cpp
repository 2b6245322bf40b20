#include "app/base/version.h"

namespace keyhole {

std::string program_version() {
    return KH_VERSION;
}

}  // namespace keyhole
