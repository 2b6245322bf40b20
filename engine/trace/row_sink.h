/// Interface that receives full rows for exact exports. Knows records and the backend's row values, not who
/// makes them.
#pragma once

#include "engine/policy/prefill_sink.h"
#include "engine/trace/record.h"

namespace keyhole {

/// Receives full rows in float as they are computed, in addition to the records. Called on the session's
/// thread, except prefill()'s sink, which workers call.
class RowSink {
  public:
    virtual ~RowSink() = default;
    /// Returns a sink for prompt rows, or null if they are not wanted. Lanes that evict stepwise pass their
    /// prompt rows to row() instead. Lane numbers of the tiles are those of the session.
    virtual PrefillSink* prefill() { return nullptr; }
    /// Receives one row. lane: index of the record in `step`. `out` holds the values that RunSpec::requested
    /// requests.
    virtual void row(const StepTrace& step, int lane, const RowOutput& out) = 0;
    /// The run was rewound to the end of this row. Discard everything received for later rows; they come
    /// again. Lanes that first appeared in later rows are gone, and their ids may be reused.
    virtual void rewind(int row) { (void)row; }
};

}  // namespace keyhole
