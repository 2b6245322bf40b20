/// Compares every kernel and every copy of an executor with the same on the host: `keyhole selftest` and the
/// tests labelled gpu run it. Run on the host executor, it shows that the cases are sound. Engine thread
/// only; takes seconds. Knows no model.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/base/device_verdict.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole::cuda {

using keyhole::SelfTestLine;

/// Runs the cases whose shape begins with `only`, or all, and returns one line for each kernel and case, in
/// the order in which a row uses them. A failing case gives a line; nothing throws.
/// progress: receives the share that is done and the kernel and case that come next; may be empty.
std::vector<SelfTestLine> run_selftest(
    const std::shared_ptr<Executor>& executor, std::string_view only = {},
    const std::function<void(double share, const std::string& what)>& progress = {});

}  // namespace keyhole::cuda
