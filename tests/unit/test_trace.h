/// A made-up run for tests of records, histories, exports and traces: three layers, four query heads on two
/// KV heads, a prompt of six tokens, evictions down to a budget. Values are functions of (lane, row, layer,
/// head, position), so any reader can be checked. Header only, no threads, no model.
#pragma once

#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/trace/run_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole::testing_trace {

constexpr int kLayers = 3, kHeads = 4, kKvHeads = 2, kPrompt = 6, kVocab = 40;

inline std::shared_ptr<const RunInfo> make_run(std::uint64_t id = 1) {
    auto run = std::make_shared<RunInfo>();
    run->id = id;
    run->model_path = "assets/models/made-up";
    run->model_hash = "0123abcd";
    run->config.family = "llama";
    run->config.n_layers = kLayers;
    run->config.n_heads = kHeads;
    run->config.n_kv_heads = kKvHeads;
    run->config.head_dim = 8;
    run->config.d_model = 32;
    run->config.d_ff = 64;
    run->config.n_vocab = kVocab;
    run->config.n_ctx = 128;
    run->config.bos = 1;
    run->config.eos = {2};
    run->layout = KvLayout::grouped(kLayers, kHeads, kKvHeads);
    run->backend = "cpu, 2 threads";
    run->prompt = "the cat sat \"down\"\n";
    for (int p = 0; p < kPrompt; ++p) run->prompt_tokens.push_back(p + 1);
    for (int v = 0; v < kVocab; ++v) {
        run->token_display.push_back(fmt::format("w{}", v));
        run->token_bytes.push_back(v == 3 ? std::string("\xe4", 1) : fmt::format(" w{}", v));
    }
    run->seed = 7;
    run->n_generate = 10;
    return run;
}

inline std::shared_ptr<const LaneInfo> make_lane(int id, int budget) {
    auto lane = std::make_shared<LaneInfo>();
    lane->id = id;
    lane->spec = budget ? fmt::format("h2o:budget={}", budget) : "full";
    lane->effective = lane->spec;
    lane->policy = resolve(parse_lane_spec(lane->spec).policy, kPrompt, 10);
    return lane;
}

inline float attention_value(int lane, int row, int layer, int head, int position) {
    return float_from_fp16(fp16_from_float(
        static_cast<float>(1 + (lane * 7 + row * 5 + layer * 3 + head * 11 + position * 13) % 97) / 128.0f));
}
inline float score_value(int lane, int row, int kv_head, int position) {
    return static_cast<float>(lane + row) + static_cast<float>(kv_head) / 8 +
           static_cast<float>(position) / 1024;
}

/// Makes records row by row and keeps the stored sets in the plainest form: the reference for histories.
class Maker {
  public:
    explicit Maker(std::shared_ptr<const RunInfo> run = make_run()) : run_(std::move(run)) {}

    std::shared_ptr<const RunInfo> run() const { return run_; }
    /// budget 0: a full lane.
    void add_lane(int id, int budget) {
        lanes_.push_back({make_lane(id, budget), budget, {}});
        for (int g = 0; g < run_->layout.n_kv_heads(); ++g) {
            lanes_.back().stored.emplace_back();
            // A lane added in mid-run has read the whole text: it starts with every position and evicts in
            // its first record.
            for (int p = 0; p < next_row_; ++p) lanes_.back().stored.back().push_back(p);
        }
    }
    void remove_lane(int id) {
        std::erase_if(lanes_, [&](const Lane& lane) { return lane.info->id == id; });
    }

    /// One record and the positions it attends to: the stored set before the row, and the row's own token.
    struct Row {
        std::shared_ptr<const StepTrace> step;
        std::vector<std::vector<std::vector<std::int32_t>>> attended;  ///< [lane in step][kv head]
        std::vector<RowValues> values;  ///< [lane in step], scores and attention
    };

    Row next() {
        auto step = std::make_shared<StepTrace>();
        Row made;
        const bool first = next_row_ == 0;
        const int row = first ? run_->n_prompt() - 1 : next_row_;
        step->run = run_;
        step->row = row;
        step->step_ms = 1.5f;
        for (Lane& lane : lanes_) {
            for (auto& stored : lane.stored)
                for (int p = first ? 0 : row; p <= row; ++p) stored.push_back(p);
            made.attended.push_back(lane.stored);
            made.values.push_back(values(lane, row));
            step->lanes.push_back(record(lane, row, made.values.back()));
        }
        next_row_ = row + 1;
        made.step = std::move(step);
        return made;
    }

  private:
    struct Lane {
        std::shared_ptr<const LaneInfo> info;
        int budget = 0;
        std::vector<std::vector<std::int32_t>> stored;
    };

    RowValues values(const Lane& lane, int row) const {
        const KvLayout& layout = run_->layout;
        RowValues v;
        v.offset.push_back(0);
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            for (int p : lane.stored[to_index(g)]) {
                v.positions.push_back(p);
                v.scores.push_back(score_value(lane.info->id, row, g, p));
            }
            v.offset.push_back(static_cast<std::int32_t>(v.positions.size()));
            v.threshold.push_back(lane.budget ? static_cast<float>(row) + 0.5f : NAN);
        }
        v.head_offset.push_back(0);
        for (int l = 0; l < layout.n_layers(); ++l)
            for (int h = 0; h < layout.n_heads(); ++h) {
                const int g = layout.kv_head_from_head(l, h);
                for (int p : lane.stored[to_index(g)]) {
                    v.attention.push_back(attention_value(lane.info->id, row, l, h, p));
                    v.logits.push_back(-attention_value(lane.info->id, row, l, h, p));
                    v.noise.push_back(2 * attention_value(lane.info->id, row, l, h, p));
                }
                v.head_offset.push_back(static_cast<std::int64_t>(v.attention.size()));
            }
        return v;
    }

    LaneRecord record(Lane& lane, int row, const RowValues& v) const {
        LaneRecord r;
        r.info = lane.info;
        r.token = row < run_->n_prompt() ? run_->prompt_tokens.back() : 10 + (row + lane.info->id) % 20;
        r.log_prob = row < run_->n_prompt() ? NAN : -0.25f * static_cast<float>(row);
        r.predicted = 10 + (row + 1 + lane.info->id) % 20;
        r.entropy = 1.25f;
        if (lane.info->id != 0 && row < 12) {
            r.kl = 0.125f;
            r.agrees = row % 2 == 0;
        }
        r.tau = 1.5f;
        r.top = {{r.predicted, -0.5f}, {5, -1.5f}};
        auto block = std::make_shared<RowBlock>();
        block->offset = v.offset;
        block->head_offset = v.head_offset;
        for (float a : v.attention) block->attention.push_back(fp16_from_float(a));
        block->scores.assign(v.scores.begin(), v.scores.end());
        block->threshold = v.threshold;
        r.rows = block;
        for (std::size_t g = 0; g < lane.stored.size(); ++g) {
            auto& stored = lane.stored[g];
            r.attended_tokens += static_cast<std::int64_t>(stored.size());
            // Each KV head evicts another position: the (g % 3 + 1)-th oldest.
            while (lane.budget && static_cast<int>(stored.size()) > lane.budget) {
                const auto victim =
                    stored.begin() + static_cast<std::ptrdiff_t>(std::min(g % 3, stored.size() - 1));
                r.evictions.push_back({static_cast<std::int32_t>(g), *victim, row});
                stored.erase(victim);
            }
            r.use.stored_tokens += static_cast<std::int64_t>(stored.size());
        }
        r.use.stored_bytes = r.use.stored_tokens * 64;
        r.use.allocated_bytes = r.use.stored_bytes + 4096;
        return r;
    }

    std::shared_ptr<const RunInfo> run_;
    std::vector<Lane> lanes_;
    int next_row_ = 0;
};

}  // namespace keyhole::testing_trace
