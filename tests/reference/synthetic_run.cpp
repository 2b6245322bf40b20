#include "tests/reference/synthetic_run.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"

#include <cmath>
#include <limits>
#include <random>

namespace keyhole::testing {

namespace {

std::shared_ptr<RunInfo> run_info(const SyntheticSpec& spec) {
    auto run = std::make_shared<RunInfo>();
    run->id = spec.run_id;
    run->model_path = spec.model_path;
    run->config.family = "synthetic";
    run->config.n_layers = spec.n_layers;
    run->config.n_heads = spec.n_heads;
    run->config.n_kv_heads = spec.n_kv_heads;
    run->config.head_dim = 8;
    run->config.n_vocab = 12;
    run->config.n_ctx = 2048;
    run->layout = KvLayout::grouped(spec.n_layers, spec.n_heads, spec.n_kv_heads);
    run->backend = "synthetic";
    for (const char* word :
         {" the", " garden", " gate", " of", " an", " old", " house", ",", ".", " code", " is", " four"}) {
        run->token_display.emplace_back(word);
        run->token_bytes.emplace_back(word);
    }
    for (int p = 0; p < spec.n_prompt; ++p) {
        run->prompt_tokens.push_back(p * 7 % 12);
        run->prompt += run->token_bytes[to_index(p * 7 % 12)];
    }
    return run;
}

struct SyntheticLane {
    std::shared_ptr<LaneInfo> info;
    std::vector<std::vector<bool>> stored;   // [KV head][position]
    std::vector<std::vector<float>> scores;  // [KV head][position]
};

}  // namespace

float synthetic_attention(int row, int layer, int head, int position) {
    const auto times = [](int n, unsigned prime) { return static_cast<unsigned>(n) * prime; };
    const unsigned h =
        times(row, 73856093) ^ times(layer, 19349663) ^ times(head, 83492791) ^ times(position, 2654435);
    std::minstd_rand random(h % 2147483646u + 1);
    random.discard(3);
    const float noise = static_cast<float>(random()) / 2147483647.0f;
    const float near = std::exp(-static_cast<float>(row - position) / static_cast<float>(2 + head * 3));
    const float sink = position == 0 ? 2.0f : 0.0f;
    const float stripe = (position % (5 + layer)) == head % 5 ? 0.4f : 0.0f;
    return (near + sink + stripe * noise + 0.02f * noise * noise) / static_cast<float>(6 + head);
}

StepList synthetic_run(const SyntheticSpec& spec) {
    const auto attention_of = spec.attention != nullptr ? spec.attention : synthetic_attention;
    const auto run = run_info(spec);
    const KvLayout& layout = run->layout;
    const int n_kv = layout.n_kv_heads(), n_all = spec.n_prompt + spec.n_decoded;
    std::vector<SyntheticLane> lanes;
    for (std::size_t i = 0; i < spec.budgets.size(); ++i) {
        SyntheticLane& lane = lanes.emplace_back();
        const LaneSpec parsed =
            parse_lane_spec(spec.budgets[i] == 0 ? "full" : fmt::format("h2o:budget={}", spec.budgets[i]));
        lane.info = std::make_shared<LaneInfo>();
        lane.info->id = static_cast<int>(i);
        lane.info->spec = format_lane_spec(parsed);
        lane.info->effective = format_effective_spec(parsed, spec.n_prompt, 0);
        lane.info->policy = resolve(parsed.policy, spec.n_prompt, 0);
        lane.stored.assign(to_index(n_kv), std::vector<bool>(to_index(n_all), false));
        lane.scores.assign(to_index(n_kv), std::vector<float>(to_index(n_all), 0));
    }
    auto prompt = std::make_shared<PromptRows>();
    prompt->size = spec.n_prompt;
    prompt->attention.assign(
        to_index(spec.n_layers * spec.n_heads) * to_index(spec.n_prompt) * to_index(spec.n_prompt), 0);
    for (int l = 0; l < spec.n_layers; ++l)
        for (int h = 0; h < spec.n_heads; ++h)
            for (int i = 0; i < spec.n_prompt; ++i)
                for (int p = 0; p <= i; ++p)
                    prompt
                        ->attention[(to_index(l * spec.n_heads + h) * to_index(spec.n_prompt) + to_index(i)) *
                                        to_index(spec.n_prompt) +
                                    to_index(p)] = fp16_from_float(attention_of(i, l, h, p));

    StepList steps;
    for (int row = spec.n_prompt - 1; row < n_all; ++row) {
        auto step = std::make_shared<StepTrace>();
        step->run = run;
        step->row = row;
        if (row == spec.n_prompt - 1) step->prompt_rows = prompt;
        for (SyntheticLane& lane : lanes) {
            LaneRecord record;
            record.info = lane.info;
            record.token = row * 7 % 12;
            record.predicted = (row + 1) * 7 % 12;
            record.log_prob = -1.5f;
            record.kl = lane.info->id == 0 ? 0.0f : 0.02f * static_cast<float>(1 + (row * lane.info->id) % 7);
            record.agrees = true;
            for (int k = 0; k < 10; ++k)
                record.top.push_back({(row * 3 + k) % 12, -0.5f * static_cast<float>(k + 1)});
            auto block = std::make_shared<RowBlock>();
            block->head_offset.assign(1, 0);
            block->offset.assign(1, 0);
            std::vector<std::vector<int>> attended(to_index(n_kv));
            for (int g = 0; g < n_kv; ++g) {
                std::vector<bool>& stored = lane.stored[to_index(g)];
                const int first_new = row == spec.n_prompt - 1 ? 0 : row;
                for (int p = first_new; p <= row; ++p) stored[to_index(p)] = true;
                for (int p = 0; p <= row; ++p)
                    if (stored[to_index(p)]) attended[to_index(g)].push_back(p);
                const HeadRef reader = layout.kv_head(g).readers.front();
                for (int p : attended[to_index(g)]) {
                    lane.scores[to_index(g)][to_index(p)] += attention_of(row, reader.layer, reader.head, p);
                    block->scores.push_back(lane.scores[to_index(g)][to_index(p)]);
                }
                block->offset.push_back(static_cast<std::int32_t>(block->scores.size()));
                record.attended_tokens += static_cast<std::int64_t>(attended[to_index(g)].size());
                // Evicts down to the budget: the lowest scores first, never the newest half.
                const int budget = lane.info->policy.evicts() ? lane.info->policy.stored : n_all;
                int n_stored = static_cast<int>(attended[to_index(g)].size());
                float lowest_kept = std::numeric_limits<float>::quiet_NaN();
                while (n_stored > budget) {
                    int victim = -1;
                    for (int p = 0; p <= row - lane.info->policy.recent; ++p)
                        if (stored[to_index(p)] &&
                            (victim < 0 || lane.scores[to_index(g)][to_index(p)] <
                                               lane.scores[to_index(g)][to_index(victim)]))
                            victim = p;
                    stored[to_index(victim)] = false;
                    record.evictions.push_back({g, victim, row});
                    lowest_kept = lane.scores[to_index(g)][to_index(victim)] * 1.02f;
                    --n_stored;
                }
                block->threshold.push_back(lowest_kept);
                record.use.stored_tokens += n_stored;
            }
            for (int l = 0; l < spec.n_layers; ++l)
                for (int h = 0; h < spec.n_heads; ++h) {
                    for (int p : attended[to_index(layout.kv_head_from_head(l, h))])
                        block->attention.push_back(fp16_from_float(attention_of(row, l, h, p)));
                    block->head_offset.push_back(static_cast<std::int64_t>(block->attention.size()));
                }
            record.use.stored_bytes = record.use.stored_tokens * 64;
            record.use.allocated_bytes = record.use.stored_bytes + 4096;
            record.rows = block;
            step->lanes.push_back(std::move(record));
        }
        steps.push_back(std::move(step));
    }
    return steps;
}

}  // namespace keyhole::testing
