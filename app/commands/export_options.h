/// The export part of a command line, shared by decode and replay. Main thread.
#pragma once

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

    void add(CLI::App& command);
    bool given() const { return !folder.empty(); }
    /// Throws Error(wrong_use) for an unknown name in the list.
    ExportOptions parsed() const;
};

}  // namespace keyhole
