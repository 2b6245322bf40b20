/// What attention, scores and shadows of a record take, which are most of it and may be left out. Any thread.
#pragma once

#include "engine/trace/record.h"

#include <cstddef>
#include <memory>

namespace keyhole {

/// Returns the bytes of the row blocks and shadows of all lanes.
std::size_t row_bytes(const StepTrace& step);
/// Returns a copy of the record without them.
std::shared_ptr<const StepTrace> without_rows(const StepTrace& step);

}  // namespace keyhole
