/// The spool of a trace file while its run goes on: a frame a record, each whole or not there. Used by trace_file.cpp alone.
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

/// The parts of a ShadowRow in the order of files.
inline constexpr std::array kShadowParts = {&ShadowRow::retained_mass, &ShadowRow::cosine_ideal,
                                            &ShadowRow::cosine_full, &ShadowRow::output_similarity};

/// Arrays of a lane's record, for those who need one of them of every record.
enum class LanePart { attention, scores, others };

/// Magic, length, hash, payload. with_run: model, prompt and vocabulary too, for the first one.
std::string make_frame(const StepTrace& step, bool with_run);
std::string frame_of(std::string_view payload);

/// A file of frames up to the first that is not whole, its rewinds followed.
class Frames {
  public:
    /// Throws Error(io); Error(bad_file) where a whole frame is no record.
    explicit Frames(const std::filesystem::path& path);

    /// All but what arrays hold by row: attention and scores are one value where there are any, shadows and hidden bits are empty.
    const StepList& light() const { return light_; }
    /// The record light()[i] as it was written.
    std::shared_ptr<const StepTrace> whole(std::size_t i) const;
    /// That the record takes in the file.
    std::size_t n_bytes(std::size_t i) const { return payloads_[i].size(); }
    /// A lane of the same: its arrays, but of attention and scores only `part`. No scalars.
    LaneRecord lane(std::size_t i, std::size_t lane, LanePart part) const;

  private:
    std::string name_;
    MappedFile file_;
    std::shared_ptr<const RunInfo> run_;
    StepList light_;
    std::vector<std::string_view> payloads_;                                 // into the file
    std::vector<std::vector<std::pair<std::string_view, RowParts>>> lanes_;  // into it too: [step][lane]
};

}  // namespace keyhole
