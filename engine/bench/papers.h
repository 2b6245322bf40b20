/// The speed tables of the papers as lists of runs: shape, context, lanes and batch, with the number that the paper printed.
/// Pure; any thread.
#pragma once

#include "engine/model/seeded_model.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Lanes of one line of a table.
struct PaperLine {
    std::string label;
    std::string lane;  ///< lane spec; budgets in tokens
    int n_lanes = 1;
    int context = 0;      ///< tokens before the timed steps: the middle of the paper's run
    int n_kv_heads = 0;   ///< in a layer that owns any; 0: as the shape
    int n_kv_layers = 0;  ///< layers that own KV heads (MLKV); 0: all
    std::string printed;  ///< in the paper; "-": it gives a curve only
};

/// Lines that are compared with the first of them.
struct PaperGroup {
    std::string title;
    std::vector<PaperLine> lines;
};

struct PaperRun {
    std::string name;    ///< "keyformer-table1"
    std::string source;  ///< what it is, and on what the paper measured it
    std::string unit;    ///< of `printed`
    std::string shape;
    bool parts = false;  ///< the table is about where the time goes
    std::vector<PaperGroup> groups;
};

std::vector<std::string_view> paper_names();
/// Throws Error(wrong_use) that lists the names.
PaperRun paper_run(std::string_view name);

/// A smaller run of the same form: contexts and budgets divided by `tokens`, lanes by `lanes`, the shape cut to `layers` layers (0: all).
struct PaperScale {
    int tokens = 1, lanes = 1, layers = 0;
};
/// Changes run and shape; says what was scaled in a clause, empty where nothing was.
std::string scale_down(PaperRun& run, ModelShape& shape, const PaperScale& scale);

/// The shape with other KV heads, in fewer layers where the line says so: layers that borrow do it as the released code does.
ModelShape with_kv_heads(ModelShape shape, const PaperLine& line);

}  // namespace keyhole
