/// The spool of a trace file while its run goes on: a frame a record, each whole or not there. Used by trace_file.cpp alone.
#pragma once

#include "engine/base/mapped_file.h"
#include "engine/trace/recorder.h"

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The parts of a ShadowRow in the order of files.
inline constexpr std::array kShadowParts = {&ShadowRow::retained_mass, &ShadowRow::cosine_ideal,
                                            &ShadowRow::cosine_full, &ShadowRow::output_similarity};

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

  private:
    std::string name_;
    MappedFile file_;
    std::shared_ptr<const RunInfo> run_;
    StepList light_;
    std::vector<std::string_view> payloads_;  // into the file
};

}  // namespace keyhole
