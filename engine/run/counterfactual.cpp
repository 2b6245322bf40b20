#include "engine/run/counterfactual.h"

#include <fmt/format.h>

namespace keyhole {

bool attends_plainly(const ResolvedPolicy& policy) {
    return policy.positions == Positions::original && policy.dilation == 0 &&
           policy.gap != ResolvedPolicy::Gap::hidden && !policy.any_reads_pages();
}

std::string CounterfactualRequest::text() const {
    return n_tokens == 1 ? fmt::format("token {}", position)
                         : fmt::format("tokens {} to {}", position, last());
}

}  // namespace keyhole
