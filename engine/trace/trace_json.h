/// Records as JSON text, all but their rows and evictions: run.json of a trace file and the frames of its
/// spool. Used by trace_file.cpp, trace_reader.cpp and spool.cpp alone.
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

/// Which arrays a record has beside its scalars.
struct RowParts {
    bool attention = false, scores = false;
    bool any = false;  ///< there is a row block, be it empty
    bool shadow = false;
};

/// with_run: model, prompt and vocabulary too.
std::string format_trace_json(const StepList& steps, bool with_run);

struct ParsedTrace {
    StepList steps;                            ///< rows, evictions and prompt rows missing
    std::vector<std::vector<RowParts>> parts;  ///< [step][lane]
};

/// Reads such texts. Every value is checked here, so that what is made of them may trust it: token ids are of
/// the vocabulary, rows follow one another, counts are within what a run can have.
class TraceParser {
  public:
    /// name: what messages call the text.
    TraceParser(std::string name, ReadBudget& budget);

    /// run: where the text has none. Throws Error(bad_file) naming the text and the field.
    ParsedTrace parse(std::string_view text, std::shared_ptr<const RunInfo> run);

  private:
    std::shared_ptr<const KvLayout> layout_of_lane(const RunInfo& run, int n_kv_layers, int n_kv_heads);
    std::shared_ptr<const LaneInfo> parse_lane_info(const JsonField& json, const RunInfo& run);

    std::string name_;
    ReadBudget& budget_;
    std::map<std::pair<int, int>, std::shared_ptr<const KvLayout>>
        layouts_;  // by layers with KV heads, and KV heads in each
};

/// The steps are the rows of one run, from the last one of its prompt on, without a gap. Tables of a lane are
/// as large as its first record says, or its parent's. Throws Error(bad_file) naming `name` and the row where
/// a lane comes twice in a step, with other KV heads than before, or from a later row; or where the tables
/// are beyond the budget.
void check_run(const StepList& steps, std::string_view name, ReadBudget& budget);

}  // namespace keyhole
