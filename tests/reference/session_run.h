/// Runs a session to its end and keeps everything that came out, in float: for tests of session, replay and
/// engine thread.
#pragma once

#include "engine/base/error.h"
#include "engine/session/session.h"
#include "engine/trace/run_history.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace reference {

/// Keeps next-token logits and evictions of every (row, lane id).
class KeepRows : public keyhole::RowSink {
  public:
    struct Kept {
        std::vector<float> next_logits;
        std::vector<keyhole::Eviction> evictions;
        int token = 0;
        bool operator==(const Kept&) const = default;
    };
    void row(const keyhole::StepTrace& step, int lane, const keyhole::RowOutput& out) override;
    std::map<std::pair<int, int>, Kept> rows;  ///< by (row, lane id)
};

/// The same of runs that rewind: a row that comes again replaces the first.
class LastRows final : public KeepRows {
  public:
    void row(const keyhole::StepTrace& step, int lane, const keyhole::RowOutput& out) override;
};

struct SessionRun {
    std::vector<std::shared_ptr<const keyhole::StepTrace>> steps;  ///< the prompt's record first
    KeepRows sink;
    keyhole::RunSpec as_run;
    std::string finish_reason;

    const keyhole::LaneRecord& lane(std::size_t step, std::size_t index) const {
        return steps.at(step)->lanes.at(index);
    }
    std::vector<int> tokens(std::size_t index) const;  ///< of decode rows
};

keyhole::RunSpec run_spec(const std::string& prompt, const std::vector<std::string>& lanes, int n_generate);

/// before_step(session, row about to be decoded) may apply commands.
SessionRun run_session(const std::shared_ptr<const keyhole::Model>& model, const keyhole::RunSpec& spec,
                       const std::function<void(keyhole::Session&, int)>& before_step = {},
                       int max_rows = 1000);

/// The same with commands in their text form, by the decode row (1, 2, ...; 0: the prompt) after which they come.
SessionRun run_session(const std::shared_ptr<const keyhole::Model>& model, const keyhole::RunSpec& spec,
                       const std::vector<std::pair<int, std::string>>& commands);
keyhole::RunHistory history_of(const SessionRun& run);

/// What the error says, and that it is one line of the kind; a gtest failure otherwise.
std::string error_of(const std::function<void()>& body, keyhole::ErrorCode code);

}  // namespace reference
