/// What a lane's eviction costs, part by part, in the window: `keyhole attribute` in a process of its own,
/// beside the run, and what it found. Window thread; its findings are plain values.
#pragma once

#include "app/state/child_job.h"
#include "engine/analysis/token_span.h"
#include "engine/model/kv_layout.h"
#include "engine/policy/lane_spec.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct StoredAttribution;

/// What to give back, and which questions say what that gains.
struct AttributionRequest {
    std::string by = "head";           ///< as `attribute --by`
    std::string questions = "prompt";  ///< the run's own prompt, or a task
    int n_questions = 8;               ///< of a task
    int context = 384;                 ///< of a task
    bool takes = false;                ///< the other way round: one part evicts, the rest keeps all
    std::string rank = "nats";         ///< as `attribute --rank`
};

/// The run's own prompt as a question.
struct PromptQuestion {
    std::string prompt;
    std::string answer;  ///< whose likelihood says what was lost
    bool chat = false;   ///< the prompt is a user's turn in the form of the model's chat template
};

struct AttributedPart {
    std::string name;           ///< "L5.G2", "L5", "12..19" or that of a group
    std::string words;          ///< of tokens
    int layer = -1, head = -1;  ///< place in a map of heads; -1: none
    std::optional<TokenSpan> tokens;
    double nats = 0, low = 0, high = 0;  ///< gain of the answer and its interval; NaN: one question has none
    double right = 0;                    ///< gain of right answers, as a share
    double kl = 0;                       ///< NaN: not known
    double p = 1;
    bool is_sure = false;
};

struct ShownAttribution {
    std::string by, lane;
    bool takes = false;
    bool of_prompt = false;  ///< tokens are those of the run's prompt as it was then
    int n_questions = 0;
    double lost = 0;                    ///< nats an answer, all parts together
    double right = 0, right_full = 0;   ///< shares of right answers
    int n_layers = 0, n_heads = 0;      ///< of the map; 0: parts are tokens
    double most = 0;                    ///< largest size of a gain
    std::vector<AttributedPart> parts;  ///< largest gain first
};

class AttributionRun {
  public:
    AttributionRun();
    ~AttributionRun();

    std::filesystem::path folder;   ///< for all that is made; empty: none is known
    std::filesystem::path program;  ///< the program that has the command attribute

    /// Begins in the background; the same request goes on from what it had. question: needed for the prompt.
    /// wake: called on any thread. Throws Error(wrong_use) for a lane without a budget, for a wrong request,
    /// and while another one is under way; Error(io) without a folder.
    void begin(const AttributionRequest& request, const std::filesystem::path& model, const LaneSpec& lane,
               const std::optional<PromptQuestion>& question, std::function<void()> wake);
    void cancel() { job_.cancel(); }
    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }  ///< 0..1
    double seconds() const { return job_.seconds(); }
    /// Returns true while one is made, and once after it, when its findings have been read.
    bool refresh();
    /// Returns why the last one was not made; empty if it was.
    std::string fault() const { return fault_.empty() ? job_.fault() : fault_; }

    /// Returns the findings; null: none yet.
    const ShownAttribution* shown() const { return shown_.get(); }

    /// Returns the lane with a part given back as it was measured: heads and layers keep all tokens, tokens
    /// and groups stay beside the budget. A query head keeps what its KV head stores. part: index into the
    /// parts. n_prompt: tokens of the run's prompt. watched: those that state the answer. Throws
    /// Error(wrong_use) where the lane does not take it.
    LaneSpec with_part(const LaneSpec& lane, std::size_t part, int n_prompt,
                       const std::optional<TokenSpan>& watched) const;
    /// Returns the lane with budgets for its heads. form: a word of budget_forms(). context: tokens that a
    /// head with all has. Throws Error(wrong_use).
    LaneSpec with_budget(const LaneSpec& lane, std::string_view form, int budget, int rest,
                         int context) const;
    /// Writes the budgets of with_budget() into a folder, as `attribute --budget` does. layout: of the lane.
    /// made_by: what made them. Returns the names of the files. Throws Error(wrong_use) for a form that a
    /// file cannot say; Error(io).
    std::vector<std::string> write_heads(const std::filesystem::path& to, const LaneSpec& lane,
                                         std::string_view form, int budget, int rest, int context,
                                         const KvLayout& layout, const std::string& made_by) const;
    /// Returns the command that found what is shown, as a shell reads it, without its folder.
    const std::string& command() const { return found_.command; }

  private:
    std::shared_ptr<const StoredAttribution> stored_;
    std::unique_ptr<const ShownAttribution> shown_;
    std::string fault_;
    struct Begun {
        std::filesystem::path folder;
        bool of_prompt = false;
        std::string rank, command;
    };
    Begun begun_, found_;  // the last one, and the one whose findings are shown
    ChildJob job_;

    const StoredAttribution& need() const;
};

/// A way to spend a budget, for lists.
struct BudgetChoice {
    std::string_view name, help;
};
std::vector<BudgetChoice> budget_choices();

}  // namespace keyhole
