/// The rows of an export as text tables, one line for each (row, layer, head, position) that was attended. One thread.
#pragma once

#include "engine/export/rows.h"

#include <filesystem>
#include <functional>

namespace keyhole {

enum class TableFormat { csv, json };

/// row, layer, head, kv_head, position, token (of the position), attention, and logit, noise, score where streamed. JSON is one array
/// with one object a line. Written beside and renamed at the end. Throws Error(io). progress: 0..1.
void write_table(const LaneRows& rows, TableFormat format, const std::filesystem::path& path,
                 const std::function<void(double)>& progress = {});

/// metrics.csv, one line for each (row, layer, head): the measures of metrics/measures.h, those of a head's row and those of its
/// KV head's kept set; empty where not computed. Throws Error(io).
void write_metrics_table(const LaneRows& rows, const std::filesystem::path& path);

}  // namespace keyhole
