/// Trace files: a saved run that the window can replay without the model, and numpy.load can open. Used by
/// one thread at a time.
///
/// FILE.keyhole is a zip of
///     run.json                format, version, model, config, prompt, vocabulary, lane settings, scalars of
///                             every step
///     prompt_attention.npy    f16 [layers * heads, size, size], max-reduced by prompt_reduction.npy i32 [1]
///     lane<i>/evicted_at.npy  i32 [KV heads, positions]: row that evicted the position, -1 never
///     lane<i>/evictions.npy   i32 [n, 4]: record's row, KV head, position, evicting row
///     lane<i>/pins.npy        i32 [n, 4]: record's row, KV head, position, 1 pinned or 0 unpinned
///     lane<i>/hidden_rows.npy i32 [n]: rows to which some stored positions were not visible
///     lane<i>/hidden.npy      u8 [n, KV heads, bytes]: bit i % 8 of byte i / 8 is the i-th stored position
///     lane<i>/rows.npy        i32 [rows kept]: the rows that the arrays below hold
///     lane<i>/attention.npy   f16 [values]: for each row kept, layer and head, one value per held position,
///                             ascending; p <= row is held if evicted_at < 0 or >= row
///     lane<i>/scores.npy      f32 [values]: for each row kept and KV head, one value per held position
///     lane<i>/thresholds.npy  f32 [rows kept, KV heads]
///     lane<i>/shadow.npy      f32 [records with a shadow, 4, layers, heads]: retained mass, cosine to Ideal,
///                             cosine to Full, output similarity; absent if there are none
///     answers.json            what the lanes answered by themselves; absent if that is not known
/// where i numbers the lanes in order of appearance. Before version 3, attention and scores had a value for
/// every position: [rows kept, layers, heads, positions], 0 where not attended, and [rows kept, KV heads,
/// positions], NaN where not attended. While a run is in progress its records are in the folder
/// FILE.keyhole.spool.
#pragma once

#include "engine/trace/recorder.h"
#include "engine/trace/spool_folder.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace keyhole {

class TraceWriter {
  public:
    /// Checks the name and makes the spool folder, which no other program may be using. First recovers a
    /// spool that a crash left there, to FILE-recovered.keyhole. Throws Error(io), Error(wrong_use).
    explicit TraceWriter(const std::filesystem::path& path);
    /// Keeps the spool if finish() was not called.
    ~TraceWriter();
    TraceWriter(const TraceWriter&) = delete;
    TraceWriter& operator=(const TraceWriter&) = delete;

    /// Writes one record to disk before it returns. Rows of one run ascend. A row that came before removes it
    /// and the later ones: a trace holds the shown branch, and lists the others. Throws Error(io).
    void append(const StepTrace& step);
    /// Writes the trace file and removes the spool. progress: see read_trace(). Throws Error(io) or
    /// Error(cancelled), and then keeps the spool.
    void finish(const std::function<bool(double)>& report = {});

    const std::filesystem::path& spool() const;
    bool has_records() const;
    /// Returns where an old spool was saved; empty if there was none.
    const std::filesystem::path& rescued() const { return rescued_; }

  private:
    std::filesystem::path path_, rescued_;
    std::optional<SpoolFolder> spool_;
};

/// Writes the records of one run. progress: see read_trace(). Throws Error(io), Error(wrong_use),
/// Error(cancelled). answers: the text of answers.json; empty: none.
void write_trace(const StepList& steps, const std::filesystem::path& path,
                 const std::function<bool(double)>& report = {}, const std::string& answers = {});

/// Returns records equal to those written. progress: receives 0..1; returning false cancels. Beside
/// the records, memory holds one row of one array. Throws Error(bad_file), naming file and member, or
/// Error(cancelled).
StepList read_trace(const std::filesystem::path& path, const std::function<bool(double)>& report = {});

/// Returns the text of answers.json; empty if the trace has none. Throws Error(bad_file).
std::string read_trace_answers(const std::filesystem::path& path);

/// Writes the spool's records, up to the last complete one, to a trace beside it, and removes the spool.
/// Returns the trace's path. progress: see read_trace(). Throws Error(bad_file) if nothing can be saved,
/// Error(io) if a program is still writing the spool.
std::filesystem::path recover_spool(const std::filesystem::path& spool,
                                    const std::function<bool(double)>& report = {});

}  // namespace keyhole
