/// Writes a run to disk: full rows as they are made, pictures and tables at the end. The same for `decode --export`, the window and
/// replay. row() is called by the session's thread, prompt tiles by workers, finish() after the run.
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
    /// Checks options and size, makes the folders. Throws Error(wrong_use) or Error(io).
    ExportSink(ExportOptions options, ExportShape shape);
    ~ExportSink() override;

    PrefillSink* prefill() override;
    void row(const StepTrace& step, int lane, const RowOutput& out) override;
    void rewind(int row) override;

    /// Closes the arrays (cut to the rows that came) and writes the rest from them and the history. progress: 0..1 with what is
    /// being written. Call once. Throws Error(io).
    void finish(const RunHistory& history,
                const std::function<void(double, const std::string&)>& progress = {});

    /// Bytes that the export will take, for a line before the run.
    std::int64_t estimated_bytes() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Export of what records hold, without a run: for replay. Attention and scores come in half precision as recorded; logits and noise
/// are not in records: Error(wrong_use) says so.
void export_history(const RunHistory& history, ExportOptions options,
                    const std::function<void(double, const std::string&)>& progress = {});

}  // namespace keyhole
