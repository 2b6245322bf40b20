#include "tests/reference/instruction_set.h"

#include "engine/backend/common/integer_products.h"

#include <hwy/highway.h>

namespace reference {

bool use_instruction_set(std::string_view name) {
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
        if (hwy::TargetName(target) != name) continue;
        hwy::SetSupportedTargetsForTest(target);
        hwy::GetChosenTarget().DeInit();  // the next call of a kernel chooses anew
        return true;
    }
    for (const keyhole::IntegerPath path : keyhole::integer_paths()) {
        if (keyhole::integer_path_name(path) != name) continue;
        keyhole::limit_integer_paths(path);
        return true;
    }
    return false;
}

}  // namespace reference
