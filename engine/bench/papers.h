/// The papers' speed tables as lists of runs: shape, context, lanes and batch, with the number that the paper
/// printed. Pure; any thread. Runs nothing itself.
#pragma once

#include "engine/model/seeded_model.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The lanes of one line of a table.
struct PaperLine {
    std::string label;
    std::string lane;  ///< lane spec; budgets in tokens
    int n_lanes = 1;
    int context = 0;      ///< tokens before the timed steps: the middle of the paper's run
    int n_kv_heads = 0;   ///< in a layer that owns any; 0: as in the shape
    int n_kv_layers = 0;  ///< layers that own KV heads (MLKV); 0: all
    std::string printed;  ///< by the paper; "-": it shows only a curve
};

/// Lines that are compared with the first line of the group.
struct PaperGroup {
    std::string title;
    std::vector<PaperLine> lines;
};

struct PaperRun {
    std::string name;    ///< "keyformer-table1"
    std::string source;  ///< the table, and the device on which the paper measured it
    std::string unit;    ///< of `printed`
    std::string shape;
    bool parts = false;  ///< the table is about where the time goes
    std::vector<PaperGroup> groups;
};

std::vector<std::string_view> paper_names();
/// Returns the run of that name. Throws Error(wrong_use), which lists the names, when there is none.
PaperRun paper_run(std::string_view name);

/// Factors for a smaller run of the same form: contexts and budgets are divided by `tokens`, lanes by
/// `lanes`, and the shape is cut to `layers` layers (0: all).
struct PaperScale {
    int tokens = 1, lanes = 1, layers = 0;
};
/// Scales run and shape down; returns a clause that says what was scaled, empty when nothing was.
std::string scale_down(PaperRun& run, ModelShape& shape, const PaperScale& scale);

/// Returns the shape with the line's number of KV heads, in fewer layers where the line says so. Layers that
/// borrow KV heads do so as the released code does.
ModelShape with_kv_heads(ModelShape shape, const PaperLine& line);

}  // namespace keyhole
