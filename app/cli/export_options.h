/// Reads the export options, which decode and replay share.
/// Main thread; writes no files itself.
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
    const CLI::Option* yes_option = nullptr;
    int row = -1;  ///< views: the shown step; -1: the last one
    int focus = 0;
    std::string look;
    int width = 0;
    std::string formats;
    std::string right;        ///< the right answer, as typed
    bool of_records = false;  ///< exports from a trace: `all` means all that its records hold

    void add(CLI::App& command);
    bool given() const { return !folder.empty(); }
    /// Returns the parsed options. Throws Error(wrong_use) for an unknown name in the list.
    ExportOptions parsed() const;
    /// Returns the view words in the list, which parsed() leaves out.
    std::vector<ViewWord> views() const;
    ViewExport view_export() const;
    /// Returns how pictures are written. Throws Error(wrong_use) for an unknown format.
    PictureChoice pictures() const;
    /// Returns whether the views hold the lanes' own answers.
    bool has_answers() const;
    /// Returns true if the list names anything else than views.
    bool has_files() const;
};

}  // namespace keyhole
