/// An export as a list of --export names it: files of the engine and views of the window, which go into one
/// folder together. `decode`, `replay` and the window share it. Any thread; knows no window.
#pragma once

#include "app/view/view_export.h"
#include "engine/export/exporter.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct RunExport {
    ExportOptions files;
    std::vector<ViewWord> views;
    ViewExport how;

    /// Returns whether the views hold the lanes' own answers.
    bool has_answers() const;
    /// Returns what the session must compute for files and views.
    RowRequest requested() const;
    /// Sets the words that pictures mark.
    void watch(const std::string& words) { files.watch = how.watch = words; }
    /// Throws Error(wrong_use) if the text of lane 0 does not have them.
    void check_watch(const RunHistory& history) const;
    /// Takes out the views that a made run does not have, and, with_marks, marked words that its text lacks,
    /// so that all others can be written. Returns a line on each.
    std::vector<std::string> leave_out_missing(const RunHistory& history, bool with_marks);
    /// Counts the views with the files. Throws Error(wrong_use) as check_views(), and for views of more heads
    /// than anyone wants unasked.
    void check(const ViewLimits& limits);
    /// Returns what writes the views when the files are written; empty if there are none. All arguments must
    /// outlive it. stride, dense_from: which rows the recorder stored.
    ExportSink::More write_views_of(const RunHistory& history, int stride, int dense_from) const;
};

/// Returns the list of an export that names none: a few files that show the whole run.
std::string usual_export_list(int n_lanes, bool with_answers);

/// Switches on the words of a list. of_records: of a trace, see parse_export_list(). Throws Error(wrong_use)
/// with the nearest of all words.
void parse_run_export(const std::string& list, RunExport& out, bool of_records = false);

}  // namespace keyhole
