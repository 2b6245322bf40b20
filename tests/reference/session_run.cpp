#include "tests/reference/session_run.h"

#include "engine/base/index.h"
#include "engine/device/make_backend.h"

#include <gtest/gtest.h>

namespace reference {

void KeepRows::row(const keyhole::StepTrace& step, int lane, const keyhole::RowOutput& out) {
    const keyhole::LaneRecord& record = step.lanes.at(keyhole::to_index(lane));
    const auto [at, is_new] =
        rows.insert({{step.row, record.info->id}, {out.next_logits, out.evictions, record.token}});
    EXPECT_TRUE(is_new) << "row " << step.row << " of lane " << record.info->id << " came twice";
}

void LastRows::row(const keyhole::StepTrace& step, int lane, const keyhole::RowOutput& out) {
    rows.erase({step.row, step.lanes.at(keyhole::to_index(lane)).info->id});
    KeepRows::row(step, lane, out);
}

std::vector<int> SessionRun::tokens(std::size_t index) const {
    std::vector<int> tokens;
    for (std::size_t t = 1; t < steps.size(); ++t) tokens.push_back(lane(t, index).token);
    return tokens;
}

keyhole::RunSpec run_spec(const std::string& prompt, const std::vector<std::string>& lanes, int n_generate) {
    keyhole::RunSpec spec;
    spec.prompt = prompt;
    for (const std::string& lane : lanes) spec.lanes.push_back(keyhole::parse_lane_spec(lane));
    spec.n_generate = n_generate;
    return spec;
}

SessionRun run_session(const std::shared_ptr<const keyhole::Model>& model, const keyhole::RunSpec& spec,
                       const std::function<void(keyhole::Session&, int)>& before_step, int max_rows) {
    std::string notice;
    const auto backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    SessionRun run;
    keyhole::Session session(model, *backend, spec, &run.sink);
    run.steps.push_back(session.prefill());
    while (static_cast<int>(run.steps.size()) <= max_rows) {
        if (before_step) before_step(session, session.next_row());
        auto step = session.step();
        if (step == nullptr) break;
        run.steps.push_back(std::move(step));
    }
    run.as_run = session.run_spec();
    run.finish_reason = session.finish_reason();
    return run;
}

SessionRun run_session(const std::shared_ptr<const keyhole::Model>& model, const keyhole::RunSpec& spec,
                       const std::vector<std::pair<int, std::string>>& commands) {
    int first = -1;
    return run_session(model, spec, [&](keyhole::Session& session, int row) {
        if (first < 0) first = row;
        for (const auto& [after, text] : commands)
            if (after == row - first) session.apply(keyhole::parse_command(text));
    });
}

keyhole::RunHistory history_of(const SessionRun& run) {
    keyhole::RunHistory history;
    history.update(run.steps);
    return history;
}

std::string error_of(const std::function<void()>& body, keyhole::ErrorCode code) {
    try {
        body();
    } catch (const keyhole::Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), code) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_GT(message.size(), 10u);
        return message;
    }
    ADD_FAILURE() << "was not refused";
    return {};
}

}  // namespace reference
