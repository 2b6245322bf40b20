/// Reads the export options, which decode and replay share.
/// Main thread; writes no files itself.
#pragma once

#include "app/cli/command.h"

#include "app/view/run_export.h"

#include <string>
#include <vector>

namespace keyhole {

/// Adds --bare, --height and --font-size.
std::vector<CliOption> add_print_options(const CliCommand& command, PrintForm& print);

struct ExportArguments {
    std::string folder;
    std::string list;  ///< empty: the usual one
    CliOption list_option;
    std::string rows = "decode";
    std::vector<int> layers, heads;
    int last_rows = 0;
    std::string dtype = "f32";
    CliOption yes_option;
    int row = -1;  ///< views: the shown step; -1: the last one
    int focus = 0;
    std::string look;
    int width = 0;
    PrintForm print;
    std::string watch;
    std::string formats;
    std::string right;        ///< the right answer, as typed
    bool of_records = false;  ///< exports from a trace: `all` means all that its records hold

    void add(const CliCommand& command);
    bool given() const { return !folder.empty(); }
    /// Returns the parsed options. n_lanes, with_answers: for the usual list. Throws Error(wrong_use) for an
    /// unknown word, and for options that nothing uses.
    RunExport parsed(int n_lanes, bool with_answers = true) const;

  private:
    /// Returns how pictures are written. Throws Error(wrong_use) for an unknown format.
    PictureChoice pictures() const;
};

}  // namespace keyhole
