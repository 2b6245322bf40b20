/// The export part of a command line, shared by decode and replay. Main thread.
#pragma once

#include "app/view/view_export.h"
#include "engine/export/options.h"

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace keyhole {

struct ExportArguments {
    std::string folder;
    std::string list = "mask,heatmap,run";
    std::string rows = "decode";
    std::vector<int> layers, heads;
    int last_rows = 0;
    std::string dtype = "f32";
    bool yes = false;
    int row = -1;  ///< of views: the shown row; -1: the last
    int focus = 0;
    std::string look;
    bool of_records = false;  ///< of a trace: `all` is all that records hold

    void add(CLI::App& command);
    bool given() const { return !folder.empty(); }
    /// Throws Error(wrong_use) for an unknown name in the list.
    ExportOptions parsed() const;
    /// The words of views among the list, which parsed() leaves out.
    std::vector<ViewWord> views() const;
    ViewExport view_export() const;
    /// Something else than views is asked for.
    bool has_files() const;
};

}  // namespace keyhole
