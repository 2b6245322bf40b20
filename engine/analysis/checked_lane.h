/// A lane at a row as the doctor looks at it. Only reads the history; knows no check.
#pragma once

#include "engine/base/index.h"
#include "engine/policy/selection.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

class CheckedLane {
  public:
    /// lane: index into history.lanes(), with a record of the row.
    CheckedLane(const RunHistory& history, int lane, int row, const LaneRecord& record);

    const RunHistory& history;
    const int lane, row;
    const LaneRecord& record;

    int n_kv() const { return layout().n_kv_heads(); }
    const KvLayout& layout() const { return history.layout(lane); }
    HeadRef reader(int g) const { return layout().kv_head(g).readers.front(); }
    const ResolvedPolicy& policy(int g) const {
        return record.info->policy.at(reader(g).layer, reader(g).head);
    }
    std::vector<Unit> units() const { return units_of(layout(), record.info->policy.scope); }
    std::string head_name(int g) const;

    /// Returns how many tokens a head may hold beyond most_stored() by the rows since its only eviction,
    /// after the prompt; 0 where it evicts while it decodes. nullopt: by its present policy it has not
    /// evicted yet, or that is not known.
    std::optional<int> rows_beyond(int g) const;
    int n_stored(int g) const { return stored_[to_index(g)]; }  ///< tokens after the row
    /// Returns how many tokens of the text the heads of a unit store, each counted once.
    int n_stored(const Unit& unit) const;
    /// Returns how many tokens none of the head's readers saw.
    int n_hidden(int g) const;
    /// Returns how many positions are pinned in a head of the unit.
    int n_pinned(const Unit& unit) const;
    /// Returns what left a head with the row, ascending.
    std::vector<std::int32_t> left_with_row(int g) const;
    /// Returns the window of a KV head's layer, the largest where several layers read it; 0: it sees all.
    int window_of(int g) const;

  private:
    std::vector<int> stored_;  // [kv_head]

    std::optional<int> rows_since_prompt(int g) const;
    void count_stored();
};

}  // namespace keyhole
