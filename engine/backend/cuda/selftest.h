/// Compares every kernel and every copy of an executor with the same on the host: `keyhole selftest` and the
/// tests labelled gpu run it. Run on the host executor, it shows that the cases are sound. Engine thread
/// only; takes seconds. Knows no model.
#pragma once

#include "engine/backend/cuda/executor.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole::cuda {

struct SelfTestLine {
    std::string kernel;    ///< "AttendSplit<Bf16>", or the function of the executor
    std::string shape;     ///< of the case
    double worst = 0;      ///< largest difference, as a share of the host's largest value
    double tolerance = 0;  ///< 0: the bits must be the same
    bool passed = false;
    std::string failure;  ///< the device's error message, if any
};

/// Returns the lines as a table with the number of failures.
std::string selftest_table(const std::vector<SelfTestLine>& lines);

/// Runs all cases, or only those of one shape, and returns one line for each kernel and case, in the
/// order in which a row uses them. A failing case gives a line; nothing throws.
std::vector<SelfTestLine> run_selftest(const std::shared_ptr<Executor>& executor, std::string_view only = {});

}  // namespace keyhole::cuda
