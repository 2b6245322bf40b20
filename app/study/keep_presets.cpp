#include "app/study/keep_presets.h"

#include "engine/analysis/opening_head.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/preset_table.h"
#include "engine/run/prompt.h"
#include "engine/session/run_context.h"
#include "engine/session/session.h"
#include "engine/trace/lane_failure.h"

#include <map>
#include <numeric>
#include <tuple>

namespace keyhole {

namespace {

/// A full lane; the others follow it.
RunSpec run_of_full(const std::string& prompt) {
    constexpr int kAhead = 24;  // tokens that `future` looks at
    RunSpec spec;
    spec.prompt = prompt;
    spec.lanes = {parse_lane_spec("full")};
    spec.follow = spec.ignore_eos = true;
    spec.n_generate = kAhead;
    spec.requested.attention = true;
    return spec;
}

/// Runs the prompt and one more row.
RunHistory history_of(const std::shared_ptr<const Model>& model, Backend& backend, const RunSpec& spec) {
    const int n_prompt = static_cast<int>(prompt_tokens(*model, spec.prompt, false).size());
    StepList steps;
    replay(model, backend, spec, n_prompt, nullptr,
           [&](std::shared_ptr<const StepTrace> step) { steps.push_back(std::move(step)); });
    throw_if_failed(*steps.back());
    RunHistory history;
    history.update(steps);
    return history;
}

/// Returns what a head of a lane stores of the prompt when the first step comes; what that step reads, where
/// it reads by pages; what is left after it, where the lane evicts while decoding alone.
std::vector<int> kept_of_prompt(const RunHistory& run, int lane, int layer, int head) {
    const int step = run.n_prompt(), g = run.layout(lane).kv_head_from_head(layer, head);
    const ResolvedPolicy& policy = run.lane_record(step, lane)->info->policy.at(layer, head);
    std::vector<int> kept;
    for (const std::int32_t p :
         policy.reads_pages() ? run.attended_positions(lane, g, step) : run.held_positions(lane, g, step)) {
        const bool leaves = policy.evict == Evict::decode && run.evicted_at(lane, g, p) == step;
        if (p < step && !leaves) kept.push_back(p);
    }
    return kept;
}

LaneSpec spec_at(const PresetRow& row, int budget) {
    LaneSpec spec{preset_params(row.preset)};
    for (Amount* amount : {&spec.policy.budget, &spec.policy.read})
        if (amount->unit != Amount::Unit::all) *amount = {Amount::Unit::tokens, static_cast<double>(budget)};
    return spec;
}

}  // namespace

KeptPictures keep_by_presets(const std::shared_ptr<const Model>& model, Backend& backend,
                             const PromptFile& prompt, int budget,
                             const std::pair<std::string, std::string>& names,
                             std::optional<std::pair<int, int>> head) {
    KeptPictures pictures{names.first, names.second, budget, 0, 0, {}, {}, {}};
    // All presets that the model can run read the prompt together, once.
    RunSpec spec = run_of_full(prompt.text);
    const RunContext context(model, backend, spec, nullptr);
    std::map<Preset, int> lane_of;
    for (const PresetRow& row : presets()) {
        KeptPicture& kept = pictures.presets.emplace_back(KeptPicture{std::string(row.name), {}});
        const LaneSpec lane = spec_at(row, budget);
        try {
            context.check(lane);
            lane_of[row.preset] = static_cast<int>(spec.lanes.size());
            spec.lanes.push_back(lane);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::wrong_use && error.code() != ErrorCode::unsupported) throw;
            kept.why_not = error.what();
        }
    }
    const RunHistory first = history_of(model, backend, spec);
    const std::vector<int>& tokens = first.lanes().front().tokens;
    for (int p = 0; p < first.n_prompt(); ++p)
        pictures.tokens.push_back(model->tokenizer().decode(std::span(&tokens[to_index(p)], 1)));
    const std::optional<TokenSpan> watched = watched_span(first, 0, prompt.guide.watch);
    if (watched) {
        pictures.watched.resize(to_index(watched->last - watched->first + 1));
        std::iota(pictures.watched.begin(), pictures.watched.end(), watched->first);
    }
    const HeadPlace opening = opening_head(first, lane_of.at(Preset::h2o), watched).value_or(HeadPlace{});
    std::tie(pictures.layer, pictures.head) = head.value_or(std::pair(opening.layer, opening.head));
    if (pictures.layer >= model->config().n_layers || pictures.head >= model->config().n_heads)
        fail(ErrorCode::wrong_use, "the model has {} layers of {} heads, counted from 0",
             model->config().n_layers, model->config().n_heads);
    for (const auto& [preset, lane] : lane_of)
        pictures.presets[to_index(static_cast<int>(preset))].positions =
            kept_of_prompt(first, lane, pictures.layer, pictures.head);
    return pictures;
}

}  // namespace keyhole
