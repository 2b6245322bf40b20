/// The tree of a run's branches: what was rewound is kept by its commands, to go back to. Session's thread; plain values, knows
/// nothing of lanes or backends.
#pragma once

#include "engine/session/command.h"
#include "engine/trace/record.h"

#include <vector>

namespace keyhole {

/// A branch is a stretch of rows and the commands on it. Rewinding to a row inside a stretch splits it there: the head keeps its
/// number, the tail gets a new one, and so does the stretch that goes on. Stretches only grow at their ends and never once something
/// goes on from there, so (row, branch of the row) names one record for good.
class BranchTree {
  public:
    /// The root begins with the prompt, whose last row is `row`.
    explicit BranchTree(int row);

    struct Stretch {
        int id = 0;
        int parent = -1;  ///< the root has none
        int from_row = 0;
        int last_row = 0;
        std::vector<LoggedCommand> commands;  ///< rows from from_row on
        bool empty() const { return parent >= 0 && last_row == from_row && commands.empty(); }
    };

    int shown() const { return shown_; }
    /// Stretch of the shown branch that a row belongs to.
    int branch_of(int row) const;
    /// Commands from the root to the end of the shown branch.
    std::vector<LoggedCommand> line() const;
    /// All stretches off the shown branch.
    std::vector<Branch> others() const;

    void log(LoggedCommand command);
    void row_done(int row);
    /// Cuts what comes after the row, commands stamped with it included, and goes on from there. False: there is nothing to cut.
    bool rewind(int row);

    struct Way {
        int from_row = 0;                     ///< last row that both branches share
        std::vector<LoggedCommand> commands;  ///< from there to the end of the branch
        int last_row = 0;
    };
    /// Throws Error(wrong_use) when there is no such branch or it is part of what is shown.
    Way way_to(int id) const;
    /// Shows another branch.
    void go_to(int id);

  private:
    std::vector<Stretch> stretches_;  // ascending ids
    int shown_ = 0;
    int next_id_ = 1;

    Stretch& at(int id);
    const Stretch& at(int id) const;
    const Stretch& other(int id) const;
    bool has_children(int id) const;
    bool on_line(int id) const;
    std::vector<int> line_of(int id) const;
    void grow(int parent, int row);
    void drop_if_empty(int id);
};

}  // namespace keyhole
