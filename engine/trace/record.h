/// Immutable record of one row of all lanes. Made by the engine thread, read by anyone. Knows policy and the
/// model's plain types (config, layout).
#pragma once

#include "engine/base/unfilled.h"
#include "engine/model/model.h"
#include "engine/policy/row.h"
#include "engine/policy/params.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// A command in text form with the row after which it was applied.
struct RunCommand {
    int row = 0;
    std::string text;
    bool operator==(const RunCommand&) const = default;
};

/// How a run was asked for, in text forms: with the prompt and the commands, enough to run it again (run_spec_of in session.h).
struct RunStart {
    std::vector<std::string> lanes;  ///< specs of the start
    std::string sampling;            ///< as the command `sampling ...`
    bool follow = false;
    bool ignore_eos = false;
    bool tokens_given = false;  ///< the prompt came as tokens: those of its text may be others
    std::vector<int> forced;    ///< fed to every lane after the prompt, before commands force others
};

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
    RunStart start;
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
    int id = 0;  ///< never reused within the shown branch
    int forked_from =
        -1;  ///< id of the lane that it is a copy of: its past up to forked_at is that lane's; -1: none
    int forked_at = -1;  ///< row after which it was copied
    /// It then ran again from the prompt, on other KV heads or merged otherwise: its cache is its own, and so are its evictions, which
    /// come with its first record. Rows up to forked_at were shown as that lane's.
    bool replayed = false;
    std::string spec;       ///< as asked for
    std::string effective;  ///< amounts in tokens, clamped
    ResolvedPolicy policy;
    /// Where the lane shares KV heads otherwise than the run's model: its own layout, for all the lane's life; null: the run's.
    std::shared_ptr<const KvLayout> layout;
    std::string kv;       ///< what it is: "mha", "gqa:4", "mqa", "mlkv:m=4,g=1"
    bool merged = false;  ///< K and V were merged and not trained since
    std::int64_t token_bytes =
        0;  ///< K and V of one token, by the equation (kv_bytes_per_token); 0: not told
};

struct TopToken {
    int id = 0;
    float log_prob = 0;
};

/// Rows of one lane at one row, compact: fp16 values in the ragged order of RowValues. The attended positions are not stored:
/// they are all p <= row with evicted_at[g][p] < 0 or >= row (RunHistory::held_positions), hidden ones included.
struct RowBlock {
    std::vector<std::int32_t> offset;         ///< [n_kv_heads + 1]
    std::vector<std::int64_t> head_offset;    ///< [n_layers * n_heads + 1]
    UnfilledVector<std::uint16_t> attention;  ///< fp16
    UnfilledVector<float> scores;             ///< [offset.back()] pooled
    std::vector<float> threshold;             ///< [n_kv_heads]
    std::size_t bytes() const;
};

/// Positions that were stored but not seen by a row (RowValues::hidden), packed: entry i of KV head g's part of a RowBlock is
/// bit i % 8 of bits[offset[g] + i / 8].
struct HiddenSet {
    std::vector<std::int32_t> offset;  ///< [n_kv_heads + 1] bytes
    std::vector<std::uint8_t> bits;
    bool hides(int kv_head, int i) const {
        const std::size_t byte = static_cast<std::size_t>(offset[static_cast<std::size_t>(kv_head)] + i / 8);
        return ((bits[byte] >> (i % 8)) & 1) != 0;
    }
    bool operator==(const HiddenSet&) const = default;
};

/// A token that no policy evicts from a KV head.
struct Pin {
    std::int32_t kv_head = 0;
    std::int32_t position = 0;
    bool operator==(const Pin&) const = default;
};
using PinList = std::vector<Pin>;  ///< ascending (kv_head, position)

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
    std::optional<bool> agrees;               ///< same most likely token as lane 0
    float tau = 1;                            ///< in force at this row
    CacheUse use;                             ///< after the row
    std::int64_t attended_tokens = 0;         ///< summed over KV heads
    std::vector<TopToken> top;                ///< most likely next tokens, best first
    RowMeasures measures;                     ///< means over layers and heads
    std::shared_ptr<const ShadowRow> shadow;  ///< the same by layer and head; null: no shadow, or thinned out
    std::vector<Eviction> evictions;          ///< since the row before: by this row, and by commands between
    std::shared_ptr<const RowBlock> rows;     ///< null: not recorded or thinned out
    std::shared_ptr<const HiddenSet> hidden;  ///< null: the row saw all that was stored. Never thinned
    std::shared_ptr<const PinList> pins;  ///< after the row; null: none. The same list while nothing changes
    /// Of a lane that shares KV heads otherwise, whose prompt attended otherwise; null: StepTrace::prompt_rows.
    std::shared_ptr<const PromptRows> prompt_rows;
    bool ended = false;   ///< EOS was consumed
    std::string failure;  ///< not empty: the lane stopped, and why
};

/// A stretch of a run between two points where it was rewound. The run is a tree of them; the line from the root to the shown one
/// is the shown branch. A row and a branch name one record for good.
struct Branch {
    int id = 0;
    int parent = -1;   ///< branch after whose end it goes on; -1: the root, which begins with the prompt
    int from_row = 0;  ///< goes on from the state after this row
    int last_row = 0;  ///< processed
    std::vector<RunCommand> commands;  ///< its own, rows from from_row on
    bool operator==(const Branch&) const = default;
};

struct StepTrace {
    std::shared_ptr<const RunInfo> run;
    int row = 0;     ///< n_prompt - 1 for the record that ends the prompt
    int branch = 0;  ///< that the row belongs to
    /// The branches beside the shown one, as they stood at this row; null: there are none.
    std::shared_ptr<const std::vector<Branch>> other_branches;
    std::vector<LaneRecord> lanes;
    std::shared_ptr<const PromptRows> prompt_rows;  ///< with the record that ends the prompt
    std::vector<std::string> commands;              ///< applied before this row, in text form
    float step_ms = 0;
};

}  // namespace keyhole
