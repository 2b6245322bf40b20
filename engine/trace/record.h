/// The immutable record of one step of all lanes. The engine thread makes it, any thread reads it. Knows
/// policies and the model's plain types (config, layout), nothing else.
#pragma once

#include "engine/base/index.h"
#include "engine/model/chat_parts.h"
#include "engine/model/model.h"
#include "engine/policy/params.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// Lanes that a run may have, removed ones included: as many as a trace file holds.
constexpr int kMostLanes = 1024;

/// A command in text form, with the row after which it was applied.
struct RunCommand {
    int row = 0;
    std::string text;
    bool operator==(const RunCommand&) const = default;
};

/// Where an answer ends, if the model does not end its text before.
struct AnswerEnd {
    /// The answer ends with the first of these texts, which does not belong to it. Empty: only the model's
    /// end of text completes an answer, and a run does not pause at it.
    std::vector<std::string> stop = {"\n"};
    int max_tokens = 24;  ///< of an answer that is computed ahead; at least 1
    bool operator==(const AnswerEnd&) const = default;
};

/// How a run was requested, in text form. With the prompt and the commands it is enough to run it again
/// (run_spec_of() in run_spec.h).
struct RunStart {
    std::vector<std::string> lanes;  ///< specs of the first lanes
    std::string sampling;            ///< in the form of the command `sampling ...`
    bool follow = false;
    bool ignore_eos = false;
    bool tokens_given = false;  ///< the prompt came as tokens; tokenizing its text may give others
    /// ChatTemplate::form, in which prompt and `say` are written; empty: as plain text. "none": the model
    /// has no template that is known.
    std::string chat;
    ChatParts chat_parts;     ///< of a known template
    std::vector<int> forced;  ///< fed to every lane after the prompt, until commands force others
    /// Unset: the run computed no answers of its lanes, or the file is older.
    std::optional<AnswerEnd> answer_end;
    // What is known of the prompt. It changes no step; empty: nothing is known.
    std::string right_answer;  ///< an answer that contains it as whole words is right
    std::string watch;         ///< words of the prompt to look at first
    std::vector<int> looks;    ///< [lane] RunHistory::Lane::look of the first lanes; empty: 0, 1, 2, ...
};

/// The part of a run that does not change. A new prompt or model starts a new run.
struct RunInfo {
    std::uint64_t id = 0;  ///< unique within one process
    std::string model_path;
    std::string model_hash;
    ModelConfig config;
    KvLayout layout;
    std::string backend;
    std::string prompt;
    std::vector<int> prompt_tokens;
    std::vector<std::string> token_display;  ///< [n_vocab] text for display
    std::vector<std::string> token_bytes;    ///< [n_vocab]
    std::uint64_t seed = 0;                  ///< of sampling
    int n_generate = 0;                      ///< tokens requested; 0: no limit
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

/// A lane's current settings. Changing a setting makes a new LaneInfo.
struct LaneInfo {
    int id = 0;            ///< never reused within the shown branch
    int forked_from = -1;  ///< id of the lane that it copies, whose rows up to forked_at it shares; -1: none
    int forked_at = -1;    ///< row after which it was copied
    /// The copy was replayed from the prompt because its KV heads or its merging differ. It has its own cache
    /// and its own evictions, which come with its first record. Rows up to forked_at are shown as the other
    /// lane's.
    bool replayed = false;
    std::string spec;       ///< as requested
    std::string effective;  ///< amounts in tokens, clamped
    ResolvedPolicy policy;
    /// Set where the lane shares KV heads differently from the run's model: its layout, which never changes.
    /// Null: the run's layout.
    std::shared_ptr<const KvLayout> layout;
    std::string kv;                       ///< name of the layout: "mha", "gqa:4", "mqa", "mlkv:m=4,g=1"
    bool merged = false;                  ///< K and V weights were merged without further training
    KvType kv_dtype = KvType::automatic;  ///< of the stored K and V; automatic: unknown (older files)
    /// Bytes of K and V per token, by the equation (kv_bytes_per_token); 0: unknown.
    std::int64_t token_bytes = 0;
};

struct TopToken {
    int id = 0;
    float log_prob = 0;
};

/// The positions that were stored but not visible to a row (RowValues::hidden), packed: entry i of KV head
/// g's part of a RowBlock is bit i % 8 of bits[offset[g] + i / 8].
struct HiddenSet {
    std::vector<std::int32_t> offset;  ///< [n_kv_heads + 1] bytes
    std::vector<std::uint8_t> bits;
    bool hides(int kv_head, int i) const {
        const std::size_t byte = to_index(offset[to_index(kv_head)] + i / 8);
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

/// Attention of the prompt, one image for all lanes with one-shot prefill, in fp16. Where the full rows
/// exceed the recorder's budget, it is max-reduced by `reduction` in both directions (1: every cell).
struct PromptRows {
    int reduction = 1;
    int size = 0;                          ///< rows and columns after reduction: ceil(n_prompt / reduction)
    std::vector<std::uint16_t> attention;  ///< [n_layers * n_heads, size, size], 0 above the diagonal
};

/// One lane at one step. The scalars describe the next-token distribution after the row, except log_prob.
struct LaneRecord {
    std::shared_ptr<const LaneInfo> info;
    int token = 0;       ///< consumed at this row
    float log_prob = 0;  ///< of `token`, from this lane's previous row; NaN for prompt rows
    int predicted = 0;   ///< the token that this lane chooses for the next row
    float entropy = 0;   ///< of the next-token distribution, nats
    /// KL(lane 0 || this lane) of the next-token distributions, nats; none once free-running lanes have
    /// diverged.
    std::optional<float> kl;
    std::optional<bool> agrees;          ///< same most likely token as lane 0
    float tau = 1;                       ///< in force at this row
    CacheUse use;                        ///< after the row
    std::int64_t attended_tokens = 0;    ///< summed over KV heads
    std::vector<TopToken> top;           ///< most likely next tokens, best first
    RowMeasures measures;                ///< means over layers and heads
    std::vector<std::uint16_t> experts;  ///< as RowOutput::experts
    /// The measures by layer and head. Null: no shadow, or thinned out.
    std::shared_ptr<const ShadowRow> shadow;
    std::vector<Eviction> evictions;  ///< since the previous row: by this row, and by commands in between
    std::shared_ptr<const RowBlock> rows;     ///< null: not recorded, or thinned out
    std::shared_ptr<const HiddenSet> hidden;  ///< null: the row saw every stored position. Never thinned
    /// After the row. Null: none. Rows share it while it does not change.
    std::shared_ptr<const PinList> pins;
    /// Set for a lane whose prompt has attention of its own because it shares KV heads differently. Null: use
    /// StepTrace::prompt_rows.
    std::shared_ptr<const PromptRows> prompt_rows;
    bool ended = false;   ///< EOS was consumed
    std::string failure;  ///< why the lane stopped; empty: it has not failed
};

/// A part of a run between two points where it was rewound. A run is a tree of branches; the shown branch is
/// the path from the root to the current one. A row and a branch always name the same record.
struct Branch {
    int id = 0;
    int parent = -1;   ///< branch that it continues; -1: the root, which begins with the prompt
    int from_row = 0;  ///< continues from the state after this row
    int last_row = 0;  ///< last row processed
    std::vector<RunCommand> commands;  ///< its own commands, rows from from_row on
    bool operator==(const Branch&) const = default;
};

struct StepTrace {
    std::shared_ptr<const RunInfo> run;
    int row = 0;     ///< n_prompt - 1 for the record that ends the prompt
    int branch = 0;  ///< branch that the row belongs to
    /// All other branches, as they stood at this row. Null: there are none.
    std::shared_ptr<const std::vector<Branch>> other_branches;
    std::vector<LaneRecord> lanes;
    std::shared_ptr<const PromptRows> prompt_rows;  ///< only with the record that ends the prompt
    std::vector<std::string> commands;              ///< applied before this row, in text form
    float step_ms = 0;
};

}  // namespace keyhole
