#include "engine/base/processor.h"

#include <hwy/targets.h>

#include <bit>

namespace keyhole {

std::string lacking_instruction_set(std::int64_t of_build, std::int64_t of_processor) {
    if ((of_build & of_processor) != 0) return {};
    return hwy::TargetName(  // the least of them
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(of_build))));
}

std::string lacking_instruction_set() {
    return lacking_instruction_set(HWY_TARGETS, hwy::SupportedTargets());
}

}  // namespace keyhole
