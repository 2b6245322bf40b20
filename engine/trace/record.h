/// Immutable record of one row of all lanes. Made by the engine thread, read by anyone. Knows policy and the
/// model's plain types (config, layout).
#pragma once

#include "engine/model/model.h"
#include "engine/policy/row.h"
#include "engine/policy/params.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// What does not change during a run. A new prompt or model starts a new run.
struct RunInfo {
    std::uint64_t id = 0;  ///< differs between runs of one process
    std::string model_path;
    std::string model_hash;
    ModelConfig config;
    KvLayout layout;
    std::string backend;
    std::string prompt;
    std::vector<int> prompt_tokens;
    std::vector<std::string> token_display;  ///< [n_vocab] text to look at
    std::vector<std::string> token_bytes;    ///< [n_vocab]
    std::uint64_t seed = 0;                  ///< of sampling
    int n_generate = 0;                      ///< asked for; 0: open end
    int n_prompt() const { return static_cast<int>(prompt_tokens.size()); }
};

/// The heads of a layout as policies see them.
inline HeadGrid head_grid(const KvLayout& layout) {
    HeadGrid grid{layout.n_layers(), layout.n_heads(), {}};
    for (int layer = 0; layer < grid.n_layers; ++layer)
        for (int head = 0; head < grid.n_heads; ++head)
            grid.kv_head.push_back(layout.kv_head_from_head(layer, head));
    return grid;
}

/// A lane's settings as they are in force. A changed setting makes a new one.
struct LaneInfo {
    int id = 0;             ///< never reused within a run
    std::string spec;       ///< as asked for
    std::string effective;  ///< amounts in tokens, clamped
    ResolvedPolicy policy;
};

struct TopToken {
    int id = 0;
    float log_prob = 0;
};

/// Rows of one lane at one row, compact: fp16 values in the ragged order of RowValues. The attended positions are not stored:
/// they are all p <= row with evicted_at[g][p] < 0 or >= row (RunHistory::attended_positions).
struct RowBlock {
    std::vector<std::int32_t> offset;       ///< [n_kv_heads + 1]
    std::vector<std::int64_t> head_offset;  ///< [n_layers * n_heads + 1]
    std::vector<std::uint16_t> attention;   ///< fp16
    std::vector<float> scores;              ///< [offset.back()] pooled
    std::vector<float> threshold;           ///< [n_kv_heads]
    std::size_t bytes() const;
};

/// Attention of the prompt, one image for all lanes of one-shot prefill: fp16, max-reduced by `reduction` in both directions
/// when the full rows do not fit the recorder's budget (1: every cell).
struct PromptRows {
    int reduction = 1;
    int size = 0;                          ///< rows and columns after reduction: ceil(n_prompt / reduction)
    std::vector<std::uint16_t> attention;  ///< [n_layers * n_heads, size, size], 0 above the diagonal
};

/// One lane at one row. The scalars describe the distribution after the row, except log_prob.
struct LaneRecord {
    std::shared_ptr<const LaneInfo> info;
    int token = 0;       ///< consumed at this row
    float log_prob = 0;  ///< that this lane's previous row gave to `token`; NaN for prompt rows
    int predicted = 0;   ///< the lane's own choice for the next row
    float entropy = 0;   ///< of the next-token distribution, nats
    std::optional<float>
        kl;  ///< KL(lane 0 || this lane) of the next-token distributions, nats; none after free lanes diverged
    std::optional<bool> agrees;            ///< same most likely token as lane 0
    float tau = 1;                         ///< in force at this row
    CacheUse use;                          ///< after the row
    std::int64_t attended_tokens = 0;      ///< summed over KV heads
    std::vector<TopToken> top;             ///< most likely next tokens, best first
    std::vector<Eviction> evictions;       ///< since the row before: by this row, and by commands between
    std::shared_ptr<const RowBlock> rows;  ///< null: not recorded or thinned out
    bool ended = false;                    ///< EOS was consumed
    std::string failure;                   ///< not empty: the lane stopped, and why
};

struct StepTrace {
    std::shared_ptr<const RunInfo> run;
    int row = 0;  ///< n_prompt - 1 for the record that ends the prompt
    std::vector<LaneRecord> lanes;
    std::shared_ptr<const PromptRows> prompt_rows;  ///< with the record that ends the prompt
    std::vector<std::string> commands;              ///< applied before this row, in text form
    float step_ms = 0;
};

}  // namespace keyhole
