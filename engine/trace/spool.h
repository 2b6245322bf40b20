/// The frame format of a spool, which holds the records of a run until its trace file is written: one frame
/// per record, which is either complete or ignored. Used only by engine/trace and its tests, on one thread.
#pragma once

#include "engine/base/mapped_file.h"
#include "engine/trace/recorder.h"
#include "engine/trace/trace_json.h"

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// The parts of a ShadowRow, in their order in files.
inline constexpr std::array kShadowParts = {&ShadowRow::retained_mass, &ShadowRow::cosine_ideal,
                                            &ShadowRow::cosine_full, &ShadowRow::output_similarity};

/// Groups of arrays in a lane's record, for readers that need one group of every record.
enum class LanePart { attention, scores, others };

/// Appends a frame: magic, length, hash, payload. with_run: includes model, prompt and vocabulary, which
/// belong in the first frame.
void append_frame(const StepTrace& step, bool with_run, std::string& to);
std::string make_frame(const StepTrace& step, bool with_run);
std::string frame_of(std::string_view payload);
/// Returns the record of a frame; light: without attention, scores and shadows. Throws Error(bad_file),
/// naming `name`, if the frame is damaged.
StepTrace read_record(std::string_view frame, const std::string& name, std::shared_ptr<const RunInfo> run,
                      bool light);

/// Returns the run of a file of frames, by its first frame alone. Throws Error(io), or Error(bad_file) if
/// that is no valid record.
std::shared_ptr<const RunInfo> run_of_frames(const std::filesystem::path& path);

/// Reads a file of frames, up to the first incomplete one. Rows that were rewound are left out.
class Frames {
  public:
    /// Throws Error(io), or Error(bad_file) if a complete frame is not a valid record.
    explicit Frames(const std::filesystem::path& path);

    /// Records without the arrays by row: attention and scores have one value where there are any, shadows
    /// and hidden bits are empty.
    const StepList& light() const { return light_; }
    /// Returns the record light()[i] as it was written.
    std::shared_ptr<const StepTrace> whole(std::size_t i) const;
    /// Returns the size of the record in the file.
    std::size_t n_bytes(std::size_t i) const { return payloads_[i].size(); }
    /// Returns one lane of record i with its arrays, but only `part` of the large ones, and without scalars.
    LaneRecord lane(std::size_t i, std::size_t lane, LanePart part) const;

  private:
    std::string name_;
    MappedFile file_;
    std::shared_ptr<const RunInfo> run_;
    StepList light_;
    std::vector<std::string_view> payloads_;                                 // views into file_
    std::vector<std::vector<std::pair<std::string_view, RowParts>>> lanes_;  // [step][lane], views into file_
};

}  // namespace keyhole
