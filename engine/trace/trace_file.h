/// Trace files: a run saved, to be replayed in the window without the model and opened by numpy.load. One thread.
///
/// FILE.keyhole is a zip of
///     run.json                       format, version, model, config, prompt, vocabulary, settings of lanes, scalars of every step
///     prompt_attention.npy           f16 [layers * heads, size, size], max-reduced by `prompt_reduction.npy` i32 [1]
///     lane<i>/evicted_at.npy         i32 [KV heads, positions], row whose processing evicted the position, -1 never
///     lane<i>/evictions.npy          i32 [n, 4]: record's row, KV head, position, evicting row
///     lane<i>/pins.npy               i32 [n, 4]: record's row, KV head, position, 1 pinned or 0 no longer
///     lane<i>/hidden_rows.npy        i32 [n]: rows that did not see all that was stored
///     lane<i>/hidden.npy             u8 [n, KV heads, bytes]: bit i % 8 of byte i / 8 is the i-th position that was stored
///     lane<i>/rows.npy               i32 [rows kept]: those that the arrays below hold
///     lane<i>/attention.npy          f16 [values]: of each row kept, layer and head those of the positions
///                                    held, ascending; p <= row was held where evicted_at < 0 or >= row
///     lane<i>/scores.npy             f32 [values]: of each row kept and KV head, the same
///     lane<i>/thresholds.npy         f32 [rows kept, KV heads]
///     lane<i>/shadow.npy             f32 [records with a shadow, 4, layers, heads]: retained mass, cosine to Ideal, to Full, output
///                                    similarity; only where there are any
/// with i = place of the lane in order of appearance. Before version 3 attention and scores had a value for
/// every position: [rows kept, layers, heads, positions], 0 where not attended, and [rows kept, KV heads,
/// positions], NaN there. While the run goes on its records lie in the folder FILE.keyhole.spool.
#pragma once

#include "engine/trace/recorder.h"
#include "engine/trace/spool_folder.h"

#include <filesystem>
#include <functional>
#include <optional>

namespace keyhole {

class TraceWriter {
  public:
    /// Checks the name and makes the spool folder, which no other program may be using. A spool left there by
    /// a crash is recovered first (to FILE-recovered.keyhole). Throws Error(io), Error(wrong_use).
    explicit TraceWriter(const std::filesystem::path& path);
    /// Leaves the spool where finish() was not called.
    ~TraceWriter();
    TraceWriter(const TraceWriter&) = delete;
    TraceWriter& operator=(const TraceWriter&) = delete;

    /// Records of one run in ascending rows; on disk when it returns. A row that came already cuts off the later ones: a trace holds
    /// the shown branch, and names the others. Throws Error(io).
    void append(const StepTrace& step);
    /// Writes the trace file and removes the spool. tell: as in read_trace(). Throws Error(io),
    /// Error(cancelled), and then leaves the spool.
    void finish(const std::function<bool(double)>& report = {});

    const std::filesystem::path& spool() const;
    /// What became of a spool that lay there; empty: there was none.
    const std::filesystem::path& rescued() const { return rescued_; }

  private:
    std::filesystem::path path_, rescued_;
    std::optional<SpoolFolder> spool_;
};

/// Records of one run. tell: as in read_trace(). Throws Error(io), Error(wrong_use), Error(cancelled).
void write_trace(const StepList& steps, const std::filesystem::path& path,
                 const std::function<bool(double)>& report = {});

/// Records equal to those written. tell: how far it is, 0..1; false from it stops. In memory beside the records: one row of one array.
/// Throws Error(bad_file) naming file and member, Error(cancelled).
StepList read_trace(const std::filesystem::path& path, const std::function<bool(double)>& report = {});

/// Turns a spool into a trace beside it, up to its last whole record, and removes it; returns the trace's
/// path. tell: as in read_trace(). Throws Error(bad_file) when nothing can be saved, Error(io) while a program
/// is writing it.
std::filesystem::path recover_spool(const std::filesystem::path& spool,
                                    const std::function<bool(double)>& report = {});

}  // namespace keyhole
