/// Rows beside the records, for exact exports. Knows records and the backend's row values, not who makes them.
#pragma once

#include "engine/policy/prefill_sink.h"
#include "engine/trace/record.h"

namespace keyhole {

/// Full rows in float as they are made, beside the records: for exact exports. Called from the session's
/// thread, prefill() from workers.
class RowSink {
  public:
    virtual ~RowSink() = default;
    /// Not null: prompt rows are wanted too. Lanes that evict stepwise send theirs through row(). Tile lanes
    /// are session lanes.
    virtual PrefillSink* prefill() { return nullptr; }
    /// lane: index of the record in `step`. `out` holds what RunSpec::wants asks for.
    virtual void row(const StepTrace& step, int lane, const RowOutput& out) = 0;
    /// The run was rewound to right after this row: what came of later rows is void, they come again. Lanes that a record showed
    /// first after it are gone; their ids may be given anew.
    virtual void rewind(int row) { (void)row; }
};

}  // namespace keyhole
