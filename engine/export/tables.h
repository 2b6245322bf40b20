/// The rows of an export as text tables, with one line for each (row, layer, head, position) that was
/// attended. One thread; knows rows of a finished run, not how they were made.
#pragma once

#include "engine/export/rows.h"

#include <filesystem>
#include <functional>

namespace keyhole {

enum class TableFormat { csv, json };

/// Writes row, layer, head, kv_head, position, token (of the position), attention, and logit, noise, score if
/// streamed. JSON is one array with one object per line. The file is written under another name and renamed
/// at the end. made_by: the first line has it, as with_made_by() does. Throws Error(io). progress: 0..1.
void write_table(const LaneRows& rows, TableFormat format, const std::filesystem::path& path,
                 const std::string& made_by, const std::function<void(double)>& progress = {});

/// Writes metrics.csv, one line for each (row, layer, head): the measures of engine/analysis/measure_table.h
/// for the head's row and for its KV head's kept set; empty where not computed. Throws Error(io).
void write_metrics_table(const LaneRows& rows, const std::filesystem::path& path, const std::string& made_by);

}  // namespace keyhole
