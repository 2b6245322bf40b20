/// How well lanes predict what is known to come: text after text, answers after questions. All lanes of a question run in lockstep in
/// one session, on the same tokens, so that they pair. Main thread; knows session.
#pragma once

#include "engine/eval/statistics.h"
#include "engine/eval/tasks.h"
#include "engine/session/session.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The prompt is processed at once, as the lane's policy says, and evicted from; then `fed` goes in one token a row, each row evicting.
struct Question {
    std::vector<int> prompt;
    std::vector<int> fed;  ///< what is scored: each token by the distribution that the row before it gave
    int n_bytes = 0;       ///< of the text of `fed`
    int distance = 0;      ///< tokens between what is asked for and the answer; 0: text
};

struct Outcome {
    double nats = 0;   ///< sum over `fed` of -ln p
    int n_tokens = 0;  ///< size of `fed`
    int n_bytes = 0;   ///< of the question
    bool right =
        false;  ///< every token of `fed` was the lane's most likely one: greedy decoding gives exactly this
};

/// One outcome a lane. Throws Error with what the session says.
std::vector<Outcome> ask(const std::shared_ptr<const Model>& model, Backend& backend,
                         std::span<const LaneSpec> lanes, const Question& question);

/// Empty caches of the models that the lanes run: while they are held, not every question merges K and V anew and takes them to the
/// device.
std::vector<std::unique_ptr<KvCache>> hold_models(const std::shared_ptr<const Model>& model, Backend& backend,
                                                  std::span<const LaneSpec> lanes);

/// Questions that are made when they are asked.
struct QuestionSet {
    std::string name;  ///< "text" or the task's
    bool is_task = false;
    int n_questions = 0;
    std::string description;  ///< one line: what is measured
    std::string identity;     ///< what question i depends on, the model included: equal ones ask the same
    std::function<Question(int)> make;
};

/// Windows of a text: each begins with the tokenizer's begin-of-text and takes `context` tokens with it, without overlap; the first
/// `n_prefill` are the prompt, the rest is fed and scored. At most `most` windows (0: all), spread evenly; what is left at the end of the
/// text is not scored. Throws Error(wrong_use) when the text does not fill a window.
QuestionSet text_windows(std::shared_ptr<const Model> model, std::string_view text, int context,
                         int n_prefill, int most);

struct TaskOptions {
    int n_questions = 500;
    std::uint64_t seed = 1;
    int context = 1024;      ///< tokens of prompt and answer
    DistanceRange distance;  ///< high 0: up to the context
    bool operator==(const TaskOptions&) const = default;
};

/// Words, narrative and passages of the tasks, kept by the sets made from it.
struct TaskTexts {
    TaskTexts(const std::filesystem::path& words_json, std::string_view narrative, std::string_view passages);
    TaskWords words;
    std::vector<std::string> sentences;
    std::vector<TaskMaterial::Passage> passages;
    std::string digest;  ///< of the three texts
};

QuestionSet task_questions(std::shared_ptr<const Model> model, std::shared_ptr<const TaskTexts> texts,
                           TaskKind kind, const TaskOptions& options);

/// What a lane made of the same questions as the others.
struct LaneScore {
    Estimate accuracy;      ///< share of right answers, Wilson's interval
    Estimate nats;          ///< per fed token, mean over questions with Student's interval
    double perplexity = 0;  ///< exp of the mean over all fed tokens
    double bits_per_byte = 0;
    // Against the first lane, question by question.
    Estimate accuracy_difference;
    Estimate nats_difference;
    int n_questions = 0;
    std::int64_t n_tokens = 0;
};

/// outcomes and reference: of the same questions in the same order.
LaneScore score_lane(std::span<const Outcome> outcomes, std::span<const Outcome> reference);

/// How many lanes at a time keep their caches of a prompt within about 2 GB.
int lanes_together(const Model& model, int context);

}  // namespace keyhole
