/// Every kernel and every copy of one executor against the same on the host: what `keyhole selftest` and the tests of label gpu run. On
/// the host executor itself it shows that the cases are sound. Engine thread only; takes seconds.
#pragma once

#include "engine/backend/cuda/executor.h"

#include <memory>
#include <string>
#include <vector>

namespace keyhole::cuda {

struct SelfTestLine {
    std::string kernel;    ///< "AttendSplit<Bf16>", or what of the executor was used
    std::string shape;     ///< of the case
    double worst = 0;      ///< largest difference, as a share of the largest value that the host has
    double tolerance = 0;  ///< 0: the same bits
    bool passed = false;
    std::string failure;  ///< what the device said, when it said something
};

/// The lines as a table, and how many of them failed.
std::string selftest_table(const std::vector<SelfTestLine>& lines);

/// One line for each kernel and case, in the order in which a row runs. A case that fails is a line; none throws.
std::vector<SelfTestLine> run_selftest(const std::shared_ptr<Executor>& executor);

}  // namespace keyhole::cuda
