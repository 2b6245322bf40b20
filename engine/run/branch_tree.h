/// The tree of a run's branches. What a rewind cuts off is kept as commands, so that one can return to it.
/// Used on the session's thread. Holds plain values and knows nothing of lanes or backends.
#pragma once

#include "engine/run/command.h"
#include "engine/trace/record.h"

#include <vector>

namespace keyhole {

/// A stretch is a range of rows with the commands applied in it; a branch is the path to its end. Rewinding
/// to a row inside a stretch splits it there: the first part keeps its number, and the second part and the
/// stretch that continues from the row get new ones. A stretch grows only at its end, and never once another
/// continues from it. So (row, branch of the row) always names the same record.
class BranchTree {
  public:
    /// The root begins with the prompt. row: the prompt's last row.
    explicit BranchTree(int row);

    struct Stretch {
        int id = 0;
        int parent = -1;  ///< -1: the root
        int from_row = 0;
        int last_row = 0;
        std::vector<LoggedCommand> commands;  ///< rows from from_row on
        bool empty() const { return parent >= 0 && last_row == from_row && commands.empty(); }
    };

    int shown() const { return shown_; }
    /// Returns the stretch of the shown branch that a row belongs to.
    int branch_of(int row) const;
    /// Returns the commands from the root to the end of the shown branch.
    std::vector<LoggedCommand> line() const;
    /// Returns all stretches that are not on the shown branch.
    std::vector<Branch> others() const;

    void log(LoggedCommand command);
    void row_done(int row);
    /// Cuts off the rows after this one, and the commands stamped with it, and continues from there. Returns
    /// false if there is nothing to cut.
    bool rewind(int row);

    struct Way {
        int from_row = 0;                     ///< last row that both branches share
        std::vector<LoggedCommand> commands;  ///< from there to the end of the branch
        int last_row = 0;
    };
    /// Returns how to get to another branch. Throws Error(wrong_use) if it does not exist or is part of the
    /// shown one.
    Way way_to(int id) const;
    /// Makes another branch the shown one.
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
