#include "engine/eval/measured_run.h"

#include "engine/trace/lane_failure.h"

namespace keyhole {

RunSpec measured_run(const Question& question, std::span<const LaneSpec> lanes) {
    RunSpec spec;
    spec.prompt_tokens = question.prompt;
    spec.forced = question.asked;
    spec.forced.insert(spec.forced.end(), question.fed.begin(), question.fed.end());
    for (const LaneSpec& lane : lanes_for(question, lanes))
        spec.lanes.push_back(changed_lane_spec(lane, "shadow=on"));
    spec.n_generate = static_cast<int>(spec.forced.size());
    spec.ignore_eos = true;
    spec.n_top = 0;
    spec.requested.attention = true;
    spec.requested.shadow = true;
    return spec;
}

void decode_measured(const std::shared_ptr<const Model>& model, Backend& backend, const RunSpec& spec,
                     RowSink& sink, std::size_t n_read,
                     const std::function<void(std::size_t, std::span<const Eviction>)>& at_read) {
    Session session(model, backend, spec, &sink);
    std::vector<std::vector<Eviction>> gone(spec.lanes.size());
    for (std::size_t t = 0; t <= spec.forced.size(); ++t) {
        const auto step = t == 0 ? session.prefill() : session.step();
        throw_if_failed(*step);
        for (std::size_t i = 0; i < gone.size() && t <= n_read; ++i) {
            const std::vector<Eviction>& left = step->lanes[i].evictions;
            gone[i].insert(gone[i].end(), left.begin(), left.end());
            if (t == n_read) at_read(i, gone[i]);
        }
    }
}

}  // namespace keyhole
