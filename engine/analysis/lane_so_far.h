/// A lane from its first row to the newest one, for measures that one record does not tell. Equations:
/// measure_table.h. Pure functions; any thread.
#pragma once

#include "engine/policy/kept_set.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

struct LaneSoFar {
    std::vector<KeptSet> stored;       ///< [KV head] after the newest row
    int n_compared = 0, n_agreed = 0;  ///< rows that were compared with lane 0
    double kv_peak_megabytes = 0;      ///< of the prompt and the rows so far
    int last_row = -1;                 ///< the newest row

    /// Takes the next row of a lane (index into history.lanes()). Rows after its last one change nothing.
    void add(const RunHistory& history, int lane, int row, const LaneRecord& record);
};

/// What a measure of a row is computed of: the row's record, and its lane and lane 0 after it.
struct RowSoFar {
    const RunHistory& history;
    const LaneRecord& record;
    int lane, row;
    const LaneSoFar &of_lane, &of_first;
};

/// Each returns NaN where the row has no value.
float recent_share_so_far(const RowSoFar& row);  ///< mean over KV heads that hold more than their budget
float jaccard_so_far(const RowSoFar& row);  ///< mean over KV heads; over query heads if the layouts differ
float agreement_so_far(const RowSoFar& row);
float kv_peak_so_far(const RowSoFar& row);
float kv_paged_so_far(const RowSoFar& row);

/// Returns what each KV head of a lane stores after a row.
std::vector<KeptSet> stored_sets(const RunHistory& history, int lane, int row);

/// Returns the bytes of K and V that a paged cache holds for these tokens. A page has kPageTokens neighbours
/// of the text, of all KV heads of a layer: it stays while one of them stores a token of it. stored:
/// [KV head]. token_bytes: of a token in all KV heads.
double paged_bytes(const KvLayout& layout, std::span<const KeptSet> stored, std::int64_t token_bytes);

}  // namespace keyhole
