/// Runs a session to its end and keeps all output in float, for tests of session, replay and engine thread.
/// Runs on the test's thread; does not know the reference model.
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

/// The same for runs that rewind: a row decoded again replaces the first.
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

/// before_step(session, next decode row) may apply commands.
SessionRun run_session(const std::shared_ptr<const keyhole::Model>& model, const keyhole::RunSpec& spec,
                       const std::function<void(keyhole::Session&, int)>& before_step = {},
                       int max_rows = 1000);

/// The same with commands as text, keyed by the decode row that they follow (1, 2, ...; 0: the prompt).
SessionRun run_session(const std::shared_ptr<const keyhole::Model>& model, const keyhole::RunSpec& spec,
                       const std::vector<std::pair<int, std::string>>& commands);
keyhole::RunHistory history_of(const SessionRun& run);

/// Returns the message of the Error that `body` throws; fails the test unless it is one line of this code.
std::string error_of(const std::function<void()>& body, keyhole::ErrorCode code);

}  // namespace reference
