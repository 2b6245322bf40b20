/// Measures how well lanes predict a known continuation: text after text, answers after questions. All lanes
/// of a question run in lockstep in one session on the same tokens, so that their results are paired. Main
/// thread; knows sessions.
#pragma once

#include "engine/eval/answer_place.h"
#include "engine/eval/statistics.h"
#include "engine/eval/tasks.h"
#include "engine/session/session.h"

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Outcome {
    double nats = 0;   ///< sum over `fed` of -ln p
    int n_tokens = 0;  ///< size of `fed`
    int n_bytes = 0;   ///< of the question
    /// Every token of `fed` was the lane's most likely one: greedy decoding gives exactly this.
    bool right = false;
    std::vector<double> measures{};  ///< in the order of QuestionSet::measures, each 0 to 1
    std::string text{};              ///< the lane's answer if there are measures; else empty
    // Where the text says what is asked for; the same for all lanes. NaN and 0: not known.
    int distance = 0;             ///< as Question::distance
    double depth = std::nan("");  ///< share of the prompt before it
    double held = std::nan("");   ///< share of its tokens that the lane holds after the text
    /// Sum over `fed` of KL(first lane || this lane) of the next-token distributions, nats. NaN: not known.
    double kl = std::nan("");
};

/// The prompt is processed, and the lane evicts as its policy says. Then `asked` is fed, and then `fed`, one
/// token and one eviction a row.
struct Question {
    std::vector<int> prompt;
    std::vector<int> fed;  ///< the scored tokens, each by the distribution of the row before it
    int n_bytes = 0;       ///< of the text of `fed`
    int distance = 0;      ///< tokens between the fact that is asked for and the answer; 0: text
    AnswerPlace place{};   ///< of the answer in the prompt, or in `asked` after it
    /// The question itself where it comes after the eviction (AskWhen::after), with the text before it where
    /// that is read token by token (AskWhen::decoding). It is not scored.
    std::vector<int> asked{};
    std::vector<TextSpan> spans{};  ///< parts of `prompt` and, after it, `asked`
    std::string asks_for{};         ///< the name of the span that states the answer; empty: not known
    /// Set: answers the question in place of ask(), with one outcome per lane.
    std::function<std::vector<Outcome>(const std::shared_ptr<const Model>&, Backend&,
                                       std::span<const LaneSpec>)>
        answer{};
};

/// Returns the lanes with the question's spans in place of `spans=fair`: each begins where one of its parts
/// does, the first one at 0, and ends where the next one begins. Unchanged without such parts.
std::vector<LaneSpec> lanes_for(const Question& question, std::span<const LaneSpec> lanes);

/// Receives -ln p of fed token `token` (0 .. size of `fed` - 1) in a lane.
using TokenNats = std::function<void(std::size_t lane, std::size_t token, double nats)>;

/// Returns one outcome per lane. each: called for every lane after every token; may be empty. Throws the
/// session's Error, and Error(cancelled) where `progress` cancels, which a question with an answer of its own
/// does not ask.
std::vector<Outcome> ask(const std::shared_ptr<const Model>& model, Backend& backend,
                         std::span<const LaneSpec> lanes, const Question& question,
                         const TokenNats& each = {}, const ProgressReport& progress = {});

/// Returns empty caches of the models that the lanes run. While they are held, K and V are not merged and
/// copied to the device again for every question.
std::vector<std::unique_ptr<KvCache>> hold_models(const std::shared_ptr<const Model>& model, Backend& backend,
                                                  std::span<const LaneSpec> lanes);

/// A measure of an answer, besides its likelihood.
struct MeasureKind {
    std::string name;       ///< in files: "rouge1"
    std::string label;      ///< in plots: "ROUGE-1"
    bool is_share = false;  ///< 0 or 1 for each question, so that its mean is a share
};

/// Questions that are made on demand.
struct QuestionSet {
    std::string name;  ///< "text", the task's, or that of the user's file
    bool is_task = false;
    int n_questions = 0;
    std::string description;  ///< one line: what is measured
    /// Everything that question i depends on, the model included: equal identities ask the same.
    std::string identity;
    std::function<Question(int)> make;
    std::vector<MeasureKind> measures{};  ///< empty: `right` and the likelihood alone
    int n_caches = 1;                     ///< caches that a lane holds at a time while it answers
    bool in_own_words = false;            ///< lanes write their answers: their likelihoods cannot be compared
};

/// Makes questions from windows of a text. Each window begins with the tokenizer's begin-of-text and has
/// `context` tokens including it, without overlap. The first `n_prefill` are the prompt, the rest is fed and
/// scored. most: number of windows (0: all), spread evenly; the rest at the end of the text is not scored.
/// Throws Error(wrong_use) if the text does not fill a window.
QuestionSet text_windows(std::shared_ptr<const Model> model, std::string_view text, int context,
                         int n_prefill, int most);

/// Whether a lane has seen the question when it evicts. Then policies that look at the newest rows choose for
/// this question; otherwise for any that may come.
enum class AskWhen {
    before,  ///< the question is part of the prompt
    after,   ///< the prompt is the text alone; the question is fed to what was kept of it
    /// The prompt is the first token alone; text and question are fed token by token, as a model reads what
    /// it wrote itself, so that the budget works in every row.
    decoding,
};

struct TaskOptions {
    int n_questions = 500;
    std::uint64_t seed = 1;
    int context = 1024;      ///< tokens of prompt and answer
    DistanceRange distance;  ///< high 0: up to the context
    AskWhen ask_when = AskWhen::before;
    bool chat = false;  ///< the prompt is a user's turn in the form of the model's chat template
    bool operator==(const TaskOptions&) const = default;
};

/// Words, narrative and passages of the tasks. The sets made from them share it.
struct TaskTexts {
    TaskTexts(const std::filesystem::path& words_json, std::string_view narrative, std::string_view passages,
              AskBy ask_by = AskBy::question);
    TaskWords words;
    std::vector<std::string> sentences;
    std::vector<TaskMaterial::Passage> passages;
    std::vector<std::string> vocabulary;
    std::string digest;  ///< of the three texts
};

QuestionSet task_questions(std::shared_ptr<const Model> model, std::shared_ptr<const TaskTexts> texts,
                           TaskKind kind, const TaskOptions& options);

/// The results of one lane on the same questions as the other lanes.
struct LaneScore {
    Estimate accuracy;      ///< share of right answers, with Wilson's interval
    Estimate nats;          ///< per fed token, mean over questions, with Student's interval
    double perplexity = 0;  ///< exp of the mean over all fed tokens
    double bits_per_byte = 0;
    double held = std::nan("");  ///< mean of Outcome::held over the questions that have one
    // Compared with the reference, question by question.
    Estimate accuracy_difference;
    Estimate nats_difference;
    int n_questions = 0;
    std::int64_t n_tokens = 0;
    struct Measure {
        Estimate value;       ///< mean over questions; of a share with Wilson's interval, else Student's
        Estimate difference;  ///< to the reference, question by question
    };
    std::vector<Measure> measures;  ///< in the order of QuestionSet::measures
};

/// outcomes, reference: of the same questions of the set in the same order.
LaneScore score_lane(const QuestionSet& set, std::span<const Outcome> outcomes,
                     std::span<const Outcome> reference);
/// The same without measures.
LaneScore score_lane(std::span<const Outcome> outcomes, std::span<const Outcome> reference);

/// Bytes of K and V that a lane stores after a text, and the most at a time on the way there: with one-shot
/// prefill those of the whole prompt, before it evicts. What a threshold, protect, or heads that share their
/// budgets change is not known before the run and left out.
struct KvBytes {
    double after = 0, most = 0;
};
/// n_tokens: of the prompt and what follows it.
KvBytes kv_bytes_of(const Model& model, const Backend& backend, const LaneSpec& lane, int n_prompt,
                    int n_tokens);
/// Returns whether any KV head of the lane may evict, or mask, a token of such a text.
bool may_evict(const Model& model, const LaneSpec& lane, int n_prompt, int n_tokens);

/// Returns how many of the first lanes may answer together, so that what they store of a context after the
/// prompt takes at most about `bytes`. At least 1. They share the pass over the prompt.
std::size_t lanes_that_fit(const Model& model, std::span<const LaneSpec> lanes, int context, double bytes);

}  // namespace keyhole
