/// One page for many tasks: what each lane answers, its mean, and the least memory that keeps most of the
/// full cache. Pure functions, for any thread; measures nothing.
#pragma once

#include "app/study/eval_report.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// What one set of questions gave.
struct SuiteTask {
    std::string name;
    std::vector<LaneScore> scores;  ///< of each lane
    std::string skipped = {};       ///< why it was not asked; then there are no scores
};

/// Returns the mean over the tasks of a lane's share of right answers. NaN: none was asked.
double suite_mean(std::span<const SuiteTask> tasks, std::size_t lane);

/// Returns, for each preset, the lane that stores least among those whose mean is at least `share` times that
/// of the reference lane; no lane of a preset: it is left out. The reference lane, the floor
/// and the ceiling do not count.
std::vector<std::size_t> smallest_that_keep(const ReportLanes& lanes, std::span<const SuiteTask> tasks,
                                            double share);

/// Returns a line on the lanes that smallest_that_keep() finds for 90 %, of one table; empty where it says
/// nothing: no task, one lane, a reference that is never right, or bytes that are not known.
std::string least_memory_text(const QuestionSet& set, const ReportLanes& lanes,
                              std::span<const LaneScore> scores);

/// Returns lines for the terminal: a column for each lane.
std::string suite_text(const ReportLanes& lanes, std::span<const SuiteTask> tasks);
/// Returns what a page with this title begins with.
std::string suite_page_begin(const std::string& title);
/// Returns the same as a page of HTML, with intervals. about: lines on model, questions and command; below:
/// lines that stand below the table.
std::string suite_page(const ReportLanes& lanes, std::span<const SuiteTask> tasks, const std::string& title,
                       std::span<const std::string> about, const std::string& below);

}  // namespace keyhole
