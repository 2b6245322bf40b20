/// Converts records to and from JSON text, without their rows and evictions: for run.json of a trace file and
/// the frames of its spool. Used only by trace_file.cpp, trace_reader.cpp and spool.cpp, on one thread.
#pragma once

#include "engine/base/json_field.h"
#include "engine/trace/read_budget.h"
#include "engine/trace/recorder.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace keyhole {

/// The arrays that a record has besides its scalars.
struct RowParts {
    bool attention = false, scores = false;
    bool any = false;  ///< there is a row block, possibly empty
    bool shadow = false;
};

/// Returns the JSON text. with_run: includes model, prompt and vocabulary.
std::string format_trace_json(const StepList& steps, bool with_run);

struct ParsedTrace {
    StepList steps;                            ///< without rows, evictions and prompt rows
    std::vector<std::vector<RowParts>> parts;  ///< [step][lane]
};

/// Parses such texts. It checks every value, so that later code can rely on them: token ids are in the
/// vocabulary, rows are consecutive, counts are within the limits of a run.
class TraceParser {
  public:
    /// name: names the text in messages.
    TraceParser(std::string name, ReadBudget& budget);

    /// run: used if the text contains none. Throws Error(bad_file), naming the text and the field.
    ParsedTrace parse(std::string_view text, std::shared_ptr<const RunInfo> run);

  private:
    std::shared_ptr<const KvLayout> layout_of_lane(const RunInfo& run, int n_kv_layers, int n_kv_heads);
    std::shared_ptr<const LaneInfo> parse_lane_info(const JsonField& json, const RunInfo& run);

    std::string name_;
    ReadBudget& budget_;
    std::map<std::pair<int, int>, std::shared_ptr<const KvLayout>>
        layouts_;  // key: layers with KV heads, KV heads in each of them
};

/// Checks that the steps are the rows of one run, from the last prompt row on, without a gap. A lane's tables
/// have the size that its first record, or its parent's, gives. Throws Error(bad_file), naming `name` and the
/// row, if a lane appears twice in a step, changes its KV heads, or is forked from a later row; or if the
/// tables exceed the budget.
void check_run(const StepList& steps, std::string_view name, ReadBudget& budget);

}  // namespace keyhole
