/// The findings of `keyhole figure`, kept as figure.json beside its pictures. Any thread; knows no window.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct FigureRecord {
    /// Two that are compared. gains: one for each sample, above 0 where the first is ahead.
    struct Comparison {
        std::string name;  ///< "tova:budget=16 against h2o:budget=16"
        std::vector<double> gains;
        bool operator==(const Comparison&) const = default;
    };
    /// What a verdict was decided on. No comparison: on nothing.
    struct Evidence {
        std::string subject;  ///< what the paper puts first: "tova"
        std::string samples;  ///< what the samples are: "questions"
        std::vector<Comparison> comparisons;
        bool operator==(const Evidence&) const = default;
    };
    /// The finding on one set of questions, or on the run.
    struct Finding {
        std::string task;  ///< empty: a run or a text
        /// "holds", "fails", "mixed", "open" (undecided), "few" (samples), "unseen" (on this model),
        /// "measured" (without a decision), "none"
        std::string verdict;
        std::string why;                     ///< a sentence with the numbers of the verdict; empty for "none"
        std::vector<std::string> sentences;  ///< those below the picture
        std::string picture;                 ///< its file name without an ending
        Evidence evidence = {};
    };
    std::string figure;               ///< "tova-3"
    std::vector<std::string> models;  ///< as typed; empty: the demo model
    std::vector<Finding> findings;    ///< one or more
};

/// Returns a verdict as readers see it: "Does not hold here"; empty for "none" and for any other text.
std::string_view verdict_label(std::string_view verdict);

inline constexpr std::string_view kFigureRecordName = "figure.json";

/// Returns the files that an earlier figure of this name wrote into the folder, and figure.json if there is
/// one. Throws Error(io) for a figure.json that is none of ours.
std::vector<std::string> files_of_figure(const std::filesystem::path& folder, const std::string& figure);
/// Returns the text of figure.json: this record with its files, and in `others` the records that the folder's
/// figure.json holds of other figures. program, command, marks: what made it, with each model's name and
/// hash.
std::string figure_record_text(const FigureRecord& record, const std::vector<std::string>& files,
                               const std::filesystem::path& folder, const std::string& program,
                               const std::string& command, const std::vector<std::string>& marks);

/// Returns the newest record of the folder. Throws Error(io), and Error(bad_file) that names file and field.
FigureRecord read_figure_record(const std::filesystem::path& folder);

}  // namespace keyhole
