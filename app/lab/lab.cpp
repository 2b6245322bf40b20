#include "app/lab/lab.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/model/digest.h"
#include "engine/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace keyhole {

namespace {

constexpr std::array<std::string_view, kExercises> kTitles = {
    "what is stored",     "which tokens stay",   "when the code is lost",
    "who still knows it", "within a byte limit", "a policy that beats H2O"};

constexpr std::size_t kLongestName = 80;
constexpr std::uint32_t kNumbersStream = 1000;  // tasks draw from streams 0 to 6

std::uint64_t digest_of_text(std::string_view text) {
    return digest_bytes(kDigestSeed, std::as_bytes(std::span(text)));
}

/// Returns the part of an answer such as " 4821." that says something.
std::string bare_code(std::string_view answer) {
    const auto counts = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    while (!answer.empty() && !counts(answer.front())) answer.remove_prefix(1);
    while (!answer.empty() && !counts(answer.back())) answer.remove_suffix(1);
    return std::string(answer);
}

int between(Draw& draw, int low, int high) {
    return low + static_cast<int>(draw.below(static_cast<std::uint32_t>(high - low + 1)));
}

}  // namespace

std::string_view exercise_title(int exercise) {
    return kTitles.at(static_cast<std::size_t>(exercise - 1));
}

std::string student_name(std::string_view typed) {
    std::string name;
    for (const char c : printable_text(typed))
        if (c != ' ' || (!name.empty() && name.back() != ' ')) name += c;
    if (name.ends_with(' ')) name.pop_back();
    if (name.empty()) fail(ErrorCode::wrong_use, "a student's name is empty; write it in quotes");
    if (name.size() > kLongestName)
        fail(ErrorCode::wrong_use, "a student's name has {} bytes; at most {} are taken", name.size(),
             kLongestName);
    return name;
}

std::uint64_t seed_of_name(std::string_view name) {
    std::string lower(name);
    for (char& c : lower)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return digest_of_text(lower) % 999'999'999 + 1;
}

std::uint64_t hidden_seed(std::uint64_t seed, std::string_view salt) {
    return digest_of_text(fmt::format("hidden {} {}", seed, salt));
}

std::string StudentNumbers::window_lane() const {
    return fmt::format("window:budget={}", window_budget);
}

std::string StudentNumbers::sink_lane() const {
    return fmt::format("sink:budget={},sinks={}", sink_budget, n_sinks);
}

StudentNumbers student_numbers(const Model& model, const TaskTexts& texts, std::uint64_t seed) {
    Draw draw(seed, kNumbersStream, 0);
    StudentNumbers numbers;
    numbers.seed = seed;
    const int context = between(draw, 170, 240);
    if (std::max(context + 16, kHiddenContext) > model.config().n_ctx)
        fail(ErrorCode::wrong_use, "the lab needs a context of {} tokens; the model's is {}; take another",
             kHiddenContext, model.config().n_ctx);
    const TaskMaterial material{&texts.words, &texts.sentences, &texts.passages,
                                [&](const std::string& text) {
                                    return static_cast<int>(model.tokenizer().encode(text, false).size());
                                }};
    const Task task = make_task(TaskKind::needle, seed, kNumbersStream, context, {40, 140}, material);
    numbers.prompt = task.prompt;
    numbers.code = bare_code(task.answer);
    numbers.n_prompt = static_cast<int>(model.tokenizer().encode(task.prompt).size());
    numbers.n_steps = between(draw, 3, 9);
    numbers.window_budget = between(draw, 20, 60);
    numbers.sink_budget = between(draw, 24, 64);
    numbers.n_sinks = between(draw, 1, 6);
    numbers.budget = between(draw, 52, 64);
    numbers.most_percent = between(draw, 28, 34);
    return numbers;
}

std::string exercise_question(int exercise, const StudentNumbers& numbers) {
    switch (exercise) {
        case 1:
            return fmt::format(
                "Your prompt has {} tokens. A full cache and the lane {} read it and decode {} tokens. How "
                "many tokens does a KV head of the full cache store then (full), how many does one of the "
                "lane (window), and how many bytes of K and V does the whole lane store (bytes)?",
                numbers.n_prompt, numbers.window_lane(), numbers.n_steps);
        case 2:
            return fmt::format(
                "The lane {} reads your prompt and decodes {} tokens. Which positions does it store then "
                "(kept)? Write ranges, such as \"0-3 90-110\". Positions count from 0.",
                numbers.sink_lane(), numbers.n_steps);
        case 3:
            return fmt::format(
                "The code in your prompt is {}. What is the smallest budget with which a lane "
                "window:budget=N still stores every token of the code once the prompt has been read "
                "(budget)?",
                numbers.code);
        case 4:
            return fmt::format(
                "The lanes window:budget={0}, h2o:budget={0} and tova:budget={0} answer {1} hidden "
                "questions. How many of them does each answer right, in per cent (window, h2o, tova)? A "
                "prediction may be {2:g} points off. Practise on questions of your own: keyhole eval --task "
                "needle --context {3} --samples 40 --seed {4} --lane window:budget={0} --lane h2o:budget={0} "
                "--lane tova:budget={0}",
                numbers.budget, kHiddenQuestions, kNearPercent, kHiddenContext, numbers.seed);
        case 5:
            return fmt::format(
                "Write a lane that never stores more than {} % of the bytes of the full cache on your prompt "
                "and the {} tokens decoded after it, and that answers at least {} of {} hidden questions "
                "right (lane).",
                numbers.most_percent, numbers.n_steps, kLeastRight, kHiddenQuestions);
        default:
            return fmt::format(
                "Write a policy: a lane with a line of your own, score=(...) or choose=(...), that stores at "
                "most {0} tokens in a KV head and beats h2o:budget={0} on {1} hidden questions: the right "
                "answer is surely more likely (lane).",
                numbers.budget, kHiddenQuestions);
    }
}

}  // namespace keyhole
