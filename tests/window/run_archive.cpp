#include "tests/window/run_archive.h"

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/index.h"
#include "engine/run/run_settings.h"
#include "engine/session/session.h"

#include <algorithm>
#include <bit>
#include <memory>

namespace keyhole::testing {

void RunArchive::take(Engine& engine) {
    status_ = engine.status();
    if (engine.recorder().version() != version_) {
        const Recorder::Snapshot snapshot = engine.recorder().snapshot();
        version_ = snapshot.version;
        if (!snapshot.steps.empty()) runs_[snapshot.steps.front()->run->id].update(snapshot.steps);
    }
    if (status_.answers == nullptr) return;
    const std::vector<LaneSpec> specs = settings_at(status_.run).lane_specs();
    for (const LaneAnswer& answer : *status_.answers) {
        const auto at = std::ranges::find(status_.lane_ids, answer.lane_id);
        const auto lane = static_cast<std::size_t>(at - status_.lane_ids.begin());
        if (at == status_.lane_ids.end() || lane >= specs.size()) continue;
        // Answers and lanes of the status may be of two moments.
        Answer known{answer.spec.empty() ? specs[lane] : parse_lane_spec(answer.spec), answer};
        if (std::ranges::find(answers_, known) == answers_.end()) answers_.push_back(std::move(known));
    }
}

const RunHistory* RunArchive::run(std::uint64_t id) const {
    const auto found = runs_.find(id);
    return found == runs_.end() ? nullptr : &found->second;
}

const LaneAnswer* AloneRun::answer(int lane) const {
    if (lane < 0 || lane >= std::ssize(lane_ids)) return nullptr;
    const auto found = std::ranges::find(answers, lane_ids[to_index(lane)], &LaneAnswer::lane_id);
    return found == answers.end() ? nullptr : &*found;
}

AloneRun run_alone(const std::string& model_path, const RunSpec& spec, int last_row, bool answers) {
    static std::map<std::string, std::shared_ptr<const Model>> models;
    std::shared_ptr<const Model>& model = models[model_path];
    if (model == nullptr) model = load_model(model_path);
    const std::unique_ptr<Backend> backend = make_cpu_backend(model, 1);
    RunSpec start = spec;
    start.commands.clear();
    Session session(model, *backend, start);
    StepList steps = {session.prefill()};
    const auto step_to = [&](int row) {
        while (session.next_row() <= row) {
            const auto step = session.step();
            if (step == nullptr) break;
            steps.push_back(step);
        }
    };
    for (const LoggedCommand& logged : spec.commands) {
        step_to(logged.row);
        session.apply(logged.command);
    }
    step_to(last_row);
    AloneRun alone;
    alone.history.update(steps);
    alone.lane_ids = session.lane_ids();
    if (!answers) return alone;
    while (session.extend_answers()) {
    }
    alone.answers = session.answers();
    return alone;
}

std::string difference_of(const StepTrace& shown, const StepTrace& alone) {
    if (shown.lanes.size() != alone.lanes.size())
        return fmt::format("{} lanes, alone {}", shown.lanes.size(), alone.lanes.size());
    const auto same = [](float a, float b) {
        return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || a == b;
    };
    for (std::size_t i = 0; i < shown.lanes.size(); ++i) {
        const LaneRecord &a = shown.lanes[i], &b = alone.lanes[i];
        const auto differs = [&](std::string_view what) { return fmt::format("lane {}: {}", i, what); };
        if (a.info->spec != b.info->spec) return differs("spec " + a.info->spec + ", alone " + b.info->spec);
        if (a.token != b.token || a.predicted != b.predicted) return differs("tokens");
        if (a.use.stored_tokens != b.use.stored_tokens) return differs("stored tokens");
        if (a.kl.has_value() != b.kl.has_value() || (a.kl && !same(*a.kl, *b.kl))) return differs("KL");
        if (a.top.size() != b.top.size()) return differs("next tokens");
        for (std::size_t k = 0; k < a.top.size(); ++k)
            if (a.top[k].id != b.top[k].id || !same(a.top[k].log_prob, b.top[k].log_prob))
                return differs("next tokens");
    }
    return {};
}

}  // namespace keyhole::testing
