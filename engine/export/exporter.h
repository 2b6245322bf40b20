/// Writes a run to disk: full rows as they are computed, pictures and tables at the end. `decode --export`,
/// the window and replay share it. row() is called on the session's thread, prompt tiles come from workers,
/// finish() is called after the run. Knows records and histories, not who makes them.
#pragma once

#include "engine/base/npy.h"
#include "engine/export/options.h"
#include "engine/trace/row_sink.h"
#include "engine/trace/run_history.h"

#include <functional>
#include <memory>
#include <vector>

namespace keyhole {

class ExportSink final : public RowSink {
  public:
    /// Checks the options and the size, and makes the folders. Throws Error(wrong_use) or Error(io).
    ExportSink(ExportOptions options, ExportShape shape);
    ~ExportSink() override;

    PrefillSink* prefill() override;
    void row(const StepTrace& step, int lane, const RowOutput& out) override;
    void rewind(int row) override;

    using Progress = std::function<void(double, const std::string&)>;
    /// Writes further files of the export, such as views, into the folder that it gets. progress: 0..1.
    using More = std::function<void(const std::filesystem::path& folder, const Progress& progress)>;

    /// Closes the arrays, cut to the rows that came, and writes the other files from them and the history,
    /// then those of `more`. They replace the files of the export before, all or none. progress: 0..1 and the
    /// name of the current file; it may throw to stop. Call it once. Throws Error(io).
    void finish(const RunHistory& history, const Progress& progress = {}, const More& more = {});

    /// Returns a line for each lane whose queries.safetensors was wanted, and that had none for finish(), and
    /// for pictures that did not fit (ExportOptions::leaves_out).
    const std::vector<std::string>& left_out() const;

    /// Return the bytes and files that the export will take, to report before the run.
    std::int64_t estimated_bytes() const;
    std::int64_t estimated_files() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Returns the shape of an export from records.
ExportShape export_shape(const RunHistory& history);

/// Exports the contents of records without a run, for replay. Attention and scores come in half precision, as
/// recorded. Records hold no logits or noise: asking for them throws Error(wrong_use).
/// Returns what was left out, as ExportSink::left_out() does.
std::vector<std::string> export_history(const RunHistory& history, ExportOptions options,
                                        const ExportSink::Progress& progress = {},
                                        const ExportSink::More& more = {});

}  // namespace keyhole
