#include "engine/eval/data_questions.h"

#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/standard_input.h"
#include "engine/base/utf8.h"
#include "engine/eval/data_file.h"
#include "engine/eval/text_scores.h"
#include "engine/model/model_identity.h"
#include "engine/run/prompt.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

/// A question in tokens.
struct TokenQuestion {
    std::vector<int> prompt;    ///< context and prompt
    std::size_t n_context = 0;  ///< tokens of it that are evicted without what follows; 0: all at once
    std::vector<std::vector<int>> choices;  ///< each behind the prompt; the target alone
    std::vector<TextSpan> spans;            ///< of the prompt
    /// Returns what lanes process and evict before they go on.
    std::vector<int> evicted() const {
        return n_context == 0 ? prompt
                              : std::vector<int>(prompt.begin(),
                                                 prompt.begin() + static_cast<std::ptrdiff_t>(n_context));
    }
    /// Returns what they are fed then.
    std::span<const int> asked() const {
        return n_context == 0 ? std::span<const int>() : std::span(prompt).subspan(n_context);
    }
};

/// The data that all questions of a file share.
struct Asking {
    DataOptions options;
    std::vector<DataExample> examples;
    std::vector<TokenQuestion> tokens;
};

std::string_view without_space_at_back(std::string_view text) {
    return text.substr(0, text.size() - space_at_back(text));
}

std::string joined(const std::string& prompt, const std::string& answer) {
    const bool has_space = prompt.empty() || space_at_back(prompt) > 0;
    return prompt + (has_space ? "" : " ") + answer;
}

/// Returns the tokens of a choice behind the prompt, as lm-eval makes them: those by which the tokens of both
/// together exceed the prompt's.
std::vector<int> choice_tokens(const Tokenizer& tokenizer, const std::string& text, std::size_t n_prompt) {
    const std::vector<int> whole = tokenizer.encode(text);
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(std::min(n_prompt, whole.size()));
    return {first, whole.end()};
}

/// Returns the tokens of a target behind a prompt that stays as it is. Where the prompt ends in white space,
/// which tokenizers would join with the target, they are the target's own.
std::vector<int> target_tokens(const Tokenizer& tokenizer, const std::string& prompt,
                               const std::string& target, std::size_t n_prompt) {
    if (space_at_back(prompt) > 0) return tokenizer.encode(target, false);
    const std::string both = space_at_front(target) > 0 ? prompt + target : joined(prompt, target);
    return choice_tokens(tokenizer, both, n_prompt);
}

std::string place(const std::filesystem::path& file, const DataExample& example) {
    return fmt::format("{}:{}", file.string(), example.line);
}

/// Shortens or refuses a prompt that leaves no room for its answer.
void fit(TokenQuestion& question, const Model& model, const DataOptions& options,
         const DataExample& example) {
    std::size_t n_answer = question.choices.empty() ? to_index(options.answer_tokens) : 0;
    for (const std::vector<int>& choice : question.choices) n_answer = std::max(n_answer, choice.size());
    const std::size_t context = to_index(options.context > 0 ? options.context : model.config().n_ctx);
    const std::size_t n_begin = model.tokenizer().encode("").size();
    if (question.prompt.size() + n_answer <= context) return;
    if (!options.cut || context < n_answer + n_begin + 1)
        fail(ErrorCode::wrong_use,
             "{}: prompt: its {} tokens and {} of the answer do not fit into {}; give a larger --context, "
             "fewer --answer-tokens or --shots, or --cut to leave out the beginning of long prompts",
             place(options.file, example), question.prompt.size(), n_answer, context);
    const std::size_t n_gone = question.prompt.size() + n_answer - context;
    if (options.ask_when == AskWhen::after && question.n_context <= n_begin + n_gone)
        fail(ErrorCode::wrong_use, "{}: context: --cut leaves nothing of it; give a larger --context",
             place(options.file, example));
    question.n_context -= std::min(n_gone, question.n_context);
    const auto first = question.prompt.begin() + static_cast<std::ptrdiff_t>(n_begin);
    question.prompt.erase(first, first + static_cast<std::ptrdiff_t>(n_gone));
}

TokenQuestion tokens_of(const Model& model, const DataOptions& options, const std::string& before,
                        const DataExample& example) {
    const Tokenizer& tokenizer = model.tokenizer();
    TokenQuestion question;
    // Without a chat the system message is text like any other.
    const std::string system = options.chat || example.system.empty() ? "" : example.system + "\n\n";
    const std::string text = system + before + example.context;
    const std::string prompt = example.context.empty() ? text + example.prompt : joined(text, example.prompt);
    const bool has_choices = !example.choices.empty();
    if (!options.cut) check_length(model, prompt, place(options.file, example) + ": prompt: it");
    const auto encoded = [&](const std::string& turn) {
        if (!options.chat) return tokenizer.encode(turn);
        return example.system.empty() ? prompt_tokens(model, turn, true)
                                      : prompt_tokens_behind(example.system, model, turn);
    };
    question.prompt = encoded(has_choices ? std::string(without_space_at_back(prompt)) : prompt);
    if (options.ask_when == AskWhen::after) {
        const std::vector<int> own = encoded(text);
        question.n_context = to_index(
            std::mismatch(own.begin(), own.end(), question.prompt.begin(), question.prompt.end()).first -
            own.begin());
        if (example.context.empty() || question.n_context == 0 ||
            question.n_context == question.prompt.size())
            fail(ErrorCode::wrong_use,
                 "{}: context: --ask-when after evicts the text before the question comes; give the text as "
                 "'context', and the question as 'prompt'",
                 place(options.file, example));
    }
    if (question.prompt.empty() && model.config().bos >= 0) question.prompt.push_back(model.config().bos);
    if (question.prompt.empty())
        fail(ErrorCode::wrong_use,
             "{}: prompt: it has no token, and {} has none to start from; give some text",
             place(options.file, example), model.path().string());
    for (const std::string& choice : example.choices) {
        question.choices.push_back(
            options.chat ? tokenizer.encode(choice, false)
                         : choice_tokens(tokenizer, joined(prompt, choice), question.prompt.size()));
        if (question.choices.back().empty())
            fail(ErrorCode::wrong_use, "{}: choices: '{}' adds no token to the prompt",
                 place(options.file, example), shown_text(choice));
    }
    if (!example.target.empty()) {
        question.choices.push_back(
            options.chat ? tokenizer.encode(example.target, false)
                         : target_tokens(tokenizer, prompt, example.target, question.prompt.size()));
        if (question.choices.back().empty())
            fail(ErrorCode::wrong_use, "{}: target: '{}' adds no token to the prompt",
                 place(options.file, example), shown_text(example.target));
    }
    fit(question, model, options, example);
    std::vector<TextPiece> pieces = {{"system", example.system},
                                     {"examples", before},
                                     {"context", example.context},
                                     {"prompt", example.prompt}};
    for (const auto& [name, words] : example.spans) pieces.push_back({name, words, true});
    question.spans = find_spans(tokenizer, question.prompt, pieces);
    return question;
}

std::string few_shot_text(const DataFile& shots, int n) {
    if (n > std::ssize(shots.examples))
        fail(ErrorCode::wrong_use, "--shots {}: the --few-shot file has {} examples", n,
             shots.examples.size());
    std::string text;
    for (int i = 0; i < n; ++i) {
        const DataExample& example = shots.examples[to_index(i)];
        const std::string prompt =
            example.context.empty() ? example.prompt : joined(example.context, example.prompt);
        text += joined(prompt, example.shown_answer()) + "\n\n";
    }
    return text;
}

RunSpec run_of(const Asking& asking, int i, std::span<const LaneSpec> lanes) {
    RunSpec spec;
    spec.prompt_tokens = asking.tokens[to_index(i)].evicted();
    spec.lanes.assign(lanes.begin(), lanes.end());
    spec.n_top = 0;
    return spec;
}

std::vector<Outcome> write_answers(const Asking& asking, int i, const std::shared_ptr<const Model>& model,
                                   Backend& backend, std::span<const LaneSpec> lanes) {
    const DataOptions& options = asking.options;
    RunSpec spec = run_of(asking, i, lanes);
    spec.n_generate = options.answer_tokens;
    spec.sampling = options.rules;
    spec.requested.scores = options.beams.n_beams > 1 && options.beams.scores == BeamScores::shared;
    const std::vector<std::string> stop =
        options.to_end_of_line ? std::vector<std::string>{"\n"} : std::vector<std::string>{};
    PromptedLanes run(model, backend, std::move(spec));
    run.ask(asking.tokens[to_index(i)].asked());
    std::vector<Outcome> outcomes;
    for (const OwnText& own : run.texts(options.beams, stop)) {
        Outcome& outcome = outcomes.emplace_back();
        const TextScores scores =
            score_text(own.text, asking.examples[to_index(i)].references, options.stems);
        outcome.nats = own.nats;
        outcome.n_tokens = std::max(1, static_cast<int>(own.tokens.size()));
        outcome.n_bytes = static_cast<int>(own.text.size());
        outcome.right = scores.exact > 0;
        outcome.measures = {scores.rouge1, scores.rouge2, scores.rouge_l, scores.exact, scores.f1};
        if (options.last_number) {
            outcome.right = ends_with_number(own.text, asking.examples[to_index(i)].references);
            outcome.measures.push_back(outcome.right ? 1 : 0);
        }
        outcome.text = own.text;
    }
    return outcomes;
}

/// Returns the index of the largest value; the first of equal ones.
template <class Value>
int best_of(std::size_t n, Value value) {
    std::size_t best = 0;
    for (std::size_t c = 1; c < n; ++c)
        if (value(c) > value(best)) best = c;
    return static_cast<int>(best);
}

double n_characters(const std::string& text) {
    return static_cast<double>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<Outcome> choose(const Asking& asking, int i, const std::shared_ptr<const Model>& model,
                            Backend& backend, std::span<const LaneSpec> lanes) {
    const DataExample& example = asking.examples[to_index(i)];
    const TokenQuestion& question = asking.tokens[to_index(i)];
    RunSpec spec = run_of(asking, i, lanes);
    for (const std::vector<int>& choice : question.choices)
        spec.n_generate = std::max(spec.n_generate, static_cast<int>(choice.size()));
    PromptedLanes run(model, backend, std::move(spec));
    run.ask(question.asked());
    std::vector<std::vector<double>> nats;  // [choice][lane]
    for (const std::vector<int>& choice : question.choices) nats.push_back(run.nats_of(choice));
    std::vector<Outcome> outcomes;
    const std::size_t n = example.choices.size(), right = to_index(example.answer);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        const auto is_right = [&](int choice) { return choice == example.answer ? 1.0 : 0.0; };
        Outcome& outcome = outcomes.emplace_back();
        outcome.nats = nats[right][lane];
        outcome.n_tokens = static_cast<int>(question.choices[right].size());
        outcome.n_bytes = static_cast<int>(example.choices[right].size());
        const int best = best_of(n, [&](std::size_t c) { return -nats[c][lane]; });
        outcome.measures = {
            is_right(best),
            is_right(
                best_of(n, [&](std::size_t c) { return -nats[c][lane] / n_characters(example.choices[c]); })),
            is_right(best_of(n, [&](std::size_t c) {
                return -nats[c][lane] / static_cast<double>(example.choices[c].size());
            }))};
        outcome.right = best == example.answer;
        outcome.text = example.choices[to_index(best)];
    }
    return outcomes;
}

/// Returns the file's name without its ending, fit for a name of files.
std::string set_name(const std::filesystem::path& file) {
    if (file == kStandardInput) return "stdin";
    std::string name = file.stem().string();
    for (char& c : name)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
    return name.empty() ? "data" : name;
}

std::string identity_of(const DataOptions& options, const DataFile& file, const std::string& shots,
                        const Model& model) {
    std::string text =
        fmt::format("data {} context={}{}{}", file.digest, options.context, options.cut ? " cut" : "",
                    options.ask_when == AskWhen::after ? " when=after" : "");
    if (options.n_before > 0) text += fmt::format(" from={}", options.n_before);
    if (options.chat) text += " chat";
    if (!shots.empty()) text += fmt::format(" shots={} of {}", options.n_shots, shots);
    if (file.has_targets()) return fmt::format("{} model={}", text, model_identity(model));
    if (!file.has_choices()) {
        text += fmt::format(" tokens={}{}{}", options.answer_tokens,
                            options.to_end_of_line ? "" : " until=text", options.stems ? " stems" : "");
        if (options.last_number) text += " last-number";
        if (options.rules != Sampling{})
            text += fmt::format(" {}", format_command(SetSampling{options.rules}));
        if (options.beams.n_beams > 1)
            text += fmt::format(" beams={} {} length_penalty={}", options.beams.n_beams,
                                options.beams.scores == BeamScores::shared ? "shared" : "apart",
                                options.beams.length_penalty) +
                    (options.beams.early_stopping ? " early_stopping" : "");
    }
    return fmt::format("{} model={}", text, model_identity(model));
}

std::string description_of(const DataOptions& options, const DataFile& file, std::size_t n) {
    std::string text = fmt::format("{} of {}", counted(n, "question"), options.file.string());
    if (options.n_shots > 0) text += fmt::format(", {} examples before each", options.n_shots);
    if (options.ask_when == AskWhen::after) text += ", asked after the eviction of their context";
    if (options.chat) text += ", as turns of a chat";
    if (file.has_choices()) return text + ": the most likely of the choices";
    if (file.has_targets()) return text + ": the likelihood of each target";
    text += fmt::format(": answers of at most {} tokens", options.answer_tokens);
    if (options.beams.n_beams > 1) text += ", " + beams_text(options.beams);
    if (options.last_number) text += "; right by the last number";
    return text + (options.stems ? "; ROUGE of stems" : "");
}

}  // namespace

std::vector<MeasureKind> text_measures() {
    return {{"rouge1", "ROUGE-1", false},
            {"rouge2", "ROUGE-2", false},
            {"rougeL", "ROUGE-L", false},
            {"exact", "exact match", true},
            {"f1", "token F1", false}};
}

std::vector<MeasureKind> choice_measures() {
    return {{"acc", "right choices", true},
            {"acc_norm", "right by character", true},
            {"acc_bytes", "right by byte", true}};
}

QuestionSet data_questions(std::shared_ptr<const Model> model, const DataOptions& options) {
    if (options.ask_when == AskWhen::after && (options.beams.n_beams > 1 || options.rules != Sampling{}))
        fail(ErrorCode::wrong_use,
             "--ask-when after takes the most likely token each time; leave out --beams and the rules of "
             "tokens");
    const DataFile file = read_data_file(options.file);
    auto asking = std::make_shared<Asking>();
    asking->options = options;
    std::string before, shots;
    std::size_t first = 0;
    if (options.n_shots > 0) {
        const DataFile shown = read_data_file(options.few_shot);
        before = few_shot_text(shown, options.n_shots);
        shots = shown.digest;
        if (shown.digest == file.digest) first = to_index(options.n_shots);
    }
    if (first >= file.examples.size())
        fail(ErrorCode::wrong_use, "--shots {} leaves no question of {} to ask", options.n_shots,
             options.file.string());
    const bool in_own_words = !file.has_choices() && !file.has_targets();
    if (options.last_number && !in_own_words)
        fail(ErrorCode::wrong_use, "--last-number is for answers in own words, and {} has {}",
             options.file.string(), file.has_choices() ? "choices" : "targets");
    first += to_index(options.n_before);
    if (first >= file.examples.size())
        fail(ErrorCode::wrong_use, "{} has no other questions than its first {}; give a longer file",
             options.file.string(), file.examples.size());
    const std::size_t n_all = file.examples.size() - first;
    const std::size_t n = options.n_questions > 0 ? std::min(n_all, to_index(options.n_questions)) : n_all;
    for (std::size_t i = first; i < first + n; ++i) {
        asking->tokens.push_back(tokens_of(*model, options, before, file.examples[i]));
        asking->examples.push_back(file.examples[i]);
    }
    QuestionSet set;
    set.name = set_name(options.file) + (options.ask_when == AskWhen::after ? "-after" : "");
    set.is_task = true;
    set.n_questions = static_cast<int>(n);
    set.description = description_of(options, file, n);
    set.identity = identity_of(options, file, shots, *model);
    set.in_own_words = in_own_words;
    set.measures = file.has_choices() ? choice_measures()
                   : in_own_words     ? text_measures()
                                      : std::vector<MeasureKind>();
    if (options.last_number) set.measures.push_back({"number", "last number", true});
    // One after the prompt, and copies of it.
    set.n_caches = file.has_targets() ? 1 : 1 + (file.has_choices() ? 1 : options.beams.n_beams);
    const auto answer = file.has_choices() ? choose : write_answers;
    set.make = [asking, answer, model, is_read = file.has_targets()](int i) {
        const TokenQuestion& tokens = asking->tokens[to_index(i)];
        const DataExample& example = asking->examples[to_index(i)];
        Question question;
        question.prompt = tokens.evicted();
        question.asked.assign(tokens.asked().begin(), tokens.asked().end());
        question.fed = tokens.choices.empty() ? model->tokenizer().encode(" " + example.shown_answer(), false)
                                              : tokens.choices[to_index(example.answer)];
        question.spans = tokens.spans;
        question.asks_for = example.asks_for;
        question.n_bytes = static_cast<int>(example.shown_answer().size());
        for (const TextSpan& span : question.spans)
            if (is_read && span.name == example.asks_for) question.place = span.place;
        if (is_read) return question;  // as a task's
        question.answer = [asking, answer, i](const std::shared_ptr<const Model>& of, Backend& backend,
                                              std::span<const LaneSpec> lanes) {
            std::vector<Outcome> outcomes = answer(*asking, i, of, backend, lanes);
            for (const Outcome& outcome : outcomes)
                if (!std::isfinite(outcome.nats))
                    fail(ErrorCode::bad_file,
                         "{}: the answer has no probability: the model computes values that are not finite, "
                         "so its weights may be damaged",
                         place(asking->options.file, asking->examples[to_index(i)]));
            return outcomes;
        };
        return question;
    };
    return set;
}

}  // namespace keyhole
