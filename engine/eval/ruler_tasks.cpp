#include "engine/eval/ruler_tasks.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/eval/drawn_parts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

namespace keyhole {

namespace {

using Texts = std::vector<std::string>;

std::string draw_number(Draw& draw) {
    return fmt::format("{}", 1'000'000 + draw.below(9'000'000));
}

/// Returns 32 hexadecimal digits in the form of a UUID.
std::string draw_uuid(Draw& draw) {
    std::array<std::uint32_t, 4> w{};
    for (std::uint32_t& word : w) word = draw.word();
    return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:04x}{:08x}", w[0], w[1] >> 16, w[1] & 0xffffu,
                       w[2] >> 16, w[2] & 0xffffu, w[3]);
}

/// A fact of the text: what is asked for by its key.
struct Needle {
    std::string key, value;
    std::string text() const { return fmt::format(" The code of {} is {}.", key, value); }
};

/// The text around the needles.
enum class Hay { noise, narrative, needles };

/// Pieces of text with needles between them.
struct Haystack {
    Texts pieces;
    std::vector<std::size_t> at;  ///< index in `pieces` of each needle, ascending
};

/// Draws pieces of hay that fit into `room` tokens.
Texts draw_hay(Draw& draw, Hay kind, int room, const TaskMaterial& material) {
    constexpr std::array<std::string_view, 4> kNoise = {" The bells ring at noon.", " The gate stands open.",
                                                        " A cart goes by.", " Nobody looks up."};
    Texts hay;
    const std::size_t start =
        kind == Hay::narrative
            ? draw.below(static_cast<std::uint32_t>(std::max<std::size_t>(1, material.sentences->size())))
            : 0;
    for (std::size_t i = 0;; ++i) {
        if (kind == Hay::narrative && i == material.sentences->size())
            fail(ErrorCode::wrong_use,
                 "the narrative of {} sentences does not fill the context; give a "
                 "longer text",
                 i);
        const std::string piece = kind == Hay::noise ? std::string(kNoise[i % kNoise.size()])
                                  : kind == Hay::narrative
                                      ? (*material.sentences)[(start + i) % material.sentences->size()]
                                      : Needle{draw_uuid(draw), draw_uuid(draw)}.text();
        room -= material.count_tokens(piece);
        if (room < 0) return hay;
        hay.push_back(piece);
    }
}

/// Puts needles at places drawn from the whole text, in their order.
Haystack put_needles(Draw& draw, const Texts& hay, const Texts& needles) {
    std::vector<std::size_t> edges;
    for (std::size_t i = 0; i < needles.size(); ++i)
        edges.push_back(draw.below(static_cast<std::uint32_t>(hay.size()) + 1));
    std::sort(edges.begin(), edges.end());
    Haystack stack;
    std::size_t next = 0;
    for (std::size_t edge = 0; edge <= hay.size(); ++edge) {
        for (; next < needles.size() && edges[next] == edge; ++next) {
            stack.at.push_back(stack.pieces.size());
            stack.pieces.push_back(needles[next]);
        }
        if (edge < hay.size()) stack.pieces.push_back(hay[edge]);
    }
    return stack;
}

std::string without_blanks_at_front(const std::string& text) {
    return text.substr(std::min(text.find_first_not_of(" \n"), text.size()));
}

/// Joins a text and its question. asked: the needle whose end the distance is
/// counted from.
Task finish(const Haystack& stack, std::size_t asked, const std::string& question, const std::string& answer,
            const TaskMaterial& material) {
    Task task;
    std::string text;
    task.distance = material.count_tokens(question);
    for (std::size_t i = 0; i < stack.pieces.size(); ++i) {
        text += stack.pieces[i];
        if (i > stack.at[asked]) task.distance += material.count_tokens(stack.pieces[i]);
    }
    task.prompt = without_blanks_at_front(text + question);
    task.answer = answer;
    task.question = question;
    task.stated = without_blanks_at_front(stack.pieces[stack.at[asked]]);
    return task;
}

int room_for(int context, const Texts& parts, const TaskMaterial& material) {
    int room = context - 1;
    for (const std::string& part : parts) room -= material.count_tokens(part);
    check_room(room);
    return room;
}

/// What a kind of needle task has.
struct NeedleForm {
    Hay hay = Hay::narrative;
    bool uuid_keys = false, uuid_values = false;
    int n_keys = 1;    ///< that are asked for, or beside the one that is
    int n_asked = 1;   ///< keys in the question
    int n_values = 1;  ///< of each key
};

NeedleForm needle_form(TaskKind kind) {
    switch (kind) {
        case TaskKind::ruler_single_1:
            return {.hay = Hay::noise};
        case TaskKind::ruler_single_3:
            return {.uuid_values = true};
        case TaskKind::ruler_multikey_1:
            return {.n_keys = 4};
        case TaskKind::ruler_multikey_2:
            return {.hay = Hay::needles};
        case TaskKind::ruler_multikey_3:
            return {.hay = Hay::needles, .uuid_keys = true, .uuid_values = true};
        case TaskKind::ruler_multivalue:
            return {.n_values = 4};
        case TaskKind::ruler_multiquery:
            return {.n_keys = 4, .n_asked = 4};
        default:
            return {};
    }
}

Task make_needles(TaskKind kind, Draw& draw, int context, const TaskMaterial& material) {
    const NeedleForm form = needle_form(kind);
    Texts keys = form.uuid_keys ? Texts{} : draw_words(draw, material, form.n_keys);
    while (form.uuid_keys && static_cast<int>(keys.size()) < form.n_keys) keys.push_back(draw_uuid(draw));
    std::vector<Needle> needles;
    for (const std::string& key : keys)
        for (int i = 0; i < form.n_values; ++i)
            needles.push_back({key, form.uuid_values ? draw_uuid(draw) : draw_number(draw)});
    Texts asked_keys, values;
    const std::size_t n_asked = to_index(form.n_asked * form.n_values);
    // One of several keys is asked for by its place after the needles are mixed.
    if (form.n_asked < form.n_keys) shuffle(draw, needles);
    const std::size_t first =
        form.n_asked < form.n_keys ? draw.below(static_cast<std::uint32_t>(needles.size())) : 0;
    for (std::size_t i = first; i < first + n_asked; ++i) {
        if (asked_keys.empty() || asked_keys.back() != needles[i].key) asked_keys.push_back(needles[i].key);
        values.push_back(needles[i].value);
    }
    const std::string question =
        form.n_values > 1  ? fmt::format(" The {} codes of {}, in the order of the text, are", form.n_values,
                                         asked_keys.front())
        : form.n_asked > 1 ? fmt::format(" The codes of {}, in this order, are", fmt::join(asked_keys, ", "))
                           : fmt::format(" The code of {} is", asked_keys.front());
    const std::string answer = fmt::format(" {}", fmt::join(values, ", "));
    Texts parts = {question, answer}, texts;
    for (const Needle& needle : needles) texts.push_back(needle.text());
    parts.insert(parts.end(), texts.begin(), texts.end());
    int room = room_for(context, parts, material);
    Texts hay;
    if (form.hay == Hay::needles && !form.uuid_keys) {
        // Each other needle has a key of its own.
        const Texts others = draw_words(
            draw, material, std::min<int>(static_cast<int>(material.vocabulary->size()), room / 8 + 2));
        for (const std::string& other : others) {
            if (std::find(keys.begin(), keys.end(), other) != keys.end()) continue;
            const std::string piece = Needle{other, draw_number(draw)}.text();
            room -= material.count_tokens(piece);
            if (room < 0) break;
            hay.push_back(piece);
        }
    } else {
        hay = draw_hay(draw, form.hay, room, material);
    }
    return finish(put_needles(draw, hay, texts), first, question, answer, material);
}

/// A value and a chain of variables that take it over from one another; all of
/// them are the answer.
Task make_tracking(Draw& draw, int context, const TaskMaterial& material) {
    constexpr int kVariables = 5, kLetters = 5;
    std::set<std::string> known;
    Texts names;
    while (static_cast<int>(names.size()) < kVariables) {
        std::string name;
        for (int i = 0; i < kLetters; ++i) name += static_cast<char>('A' + draw.below(26));
        if (known.insert(name).second) names.push_back(name);
    }
    const std::string value = fmt::format("{}", 10'000 + draw.below(90'000));
    Texts chain = {fmt::format(" Let {} = {}.", names.front(), value)};
    for (std::size_t i = 1; i < names.size(); ++i)
        chain.push_back(fmt::format(" Let {} = {}.", names[i], names[i - 1]));
    const std::string question =
                          fmt::format(" The {} names that have the value {}, in the order of the text, are",
                                      kVariables, value),
                      answer = fmt::format(" {}", fmt::join(names, ", "));
    Texts parts = chain;
    parts.insert(parts.end(), {question, answer});
    const Texts hay = draw_hay(draw, Hay::noise, room_for(context, parts, material), material);
    return finish(put_needles(draw, hay, chain), 0, question, answer, material);
}

/// A numbered list whose most frequent words are the answer.
Task finish_list(Draw& draw, Texts words, const std::string& question, const std::string& answer) {
    shuffle(draw, words);
    Task task;
    for (std::size_t i = 0; i < words.size(); ++i)
        task.prompt += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, words[i]);
    task.prompt += "." + question;
    task.question = question;
    task.answer = answer;
    return task;
}

/// Returns the tokens of the numbered word n, counted from 1, for words of so many tokens.
int tokens_of_word(int n, int tokens_a_word, const TaskMaterial& material) {
    return material.count_tokens(fmt::format(" {}.", n)) + tokens_a_word;
}

/// Returns how many numbered words fit into `room` tokens.
int words_that_fit(int room, int tokens_a_word, const TaskMaterial& material) {
    int n = 0;
    while (true) {
        room -= tokens_of_word(n + 1, tokens_a_word, material);
        if (room < 0) return n;
        ++n;
    }
}

/// Throws Error(wrong_use) if n numbered words do not fit into `room` tokens.
void check_words(int n, int room, int tokens_a_word, const TaskMaterial& material) {
    for (int i = 1; i <= n; ++i) room -= tokens_of_word(i, tokens_a_word, material);
    check_room(room);
}

int longest_word(const Texts& words, const TaskMaterial& material) {
    int most = 1;
    for (const std::string& word : words) most = std::max(most, material.count_tokens(" " + word));
    return most;
}

/// Common words come ten times, the others once. Ten words are common, or fewer
/// in a short text.
Task make_common_words(Draw& draw, int context, const TaskMaterial& material) {
    constexpr int kTimes = 10, kMostCommon = 10;
    const Texts drawn =
        draw_words(draw, material,
                   std::min<int>(static_cast<int>(material.vocabulary->size()), context / 2 + kMostCommon));
    const auto question_of = [](int n) {
        return n == 1 ? std::string(" The word that occurs most often in the list is")
                      : fmt::format(
                            " The {} words that occur most often in the list, "
                            "in the order of the "
                            "alphabet, are",
                            n);
    };
    for (int n_common = kMostCommon; n_common >= 1; --n_common) {
        Texts common(drawn.begin(), drawn.begin() + n_common);
        std::sort(common.begin(), common.end());
        const std::string question = question_of(n_common),
                          answer = fmt::format(" {}", fmt::join(common, ", "));
        const int room = context - 2 - material.count_tokens(question) - material.count_tokens(answer);
        const int longest = longest_word(drawn, material), n = words_that_fit(room, longest, material);
        if (n_common == 1) check_words(2 * kTimes, room, longest, material);
        if (n < 2 * kTimes * n_common) continue;
        Texts words;
        for (const std::string& word : common) words.insert(words.end(), kTimes, word);
        for (std::size_t i = to_index(n_common); i < drawn.size() && static_cast<int>(words.size()) < n; ++i)
            words.push_back(drawn[i]);
        return finish_list(draw, std::move(words), question, answer);
    }
    KH_ASSERT(false, "context={}", context);
    return {};
}

/// Made-up words whose frequency falls with the square of their rank; the first
/// three are the answer.
Task make_frequent_words(Draw& draw, int context, const TaskMaterial& material) {
    constexpr int kLetters = 6, kAsked = 3, kLeast = 45;
    Texts names;
    std::set<std::string> known;
    while (names.size() < 40) {
        std::string name;
        for (int i = 0; i < kLetters; ++i) name += static_cast<char>('a' + draw.below(26));
        if (known.insert(name).second) names.push_back(name);
    }
    const std::string question = fmt::format(
                          " The {} words that occur most often in the list, the most frequent "
                          "first, are",
                          kAsked),
                      answer = fmt::format(" {}, {}, {}", names[0], names[1], names[2]);
    const int room = context - 2 - material.count_tokens(question) - material.count_tokens(answer),
              longest = longest_word(names, material), n = words_that_fit(room, longest, material);
    check_words(kLeast, room, longest, material);
    double sum = 0;
    for (std::size_t k = 1; k <= names.size(); ++k) sum += 1.0 / static_cast<double>(k * k);
    Texts words;
    for (std::size_t k = 1; k <= names.size(); ++k) {
        const auto times = static_cast<std::size_t>(n / sum / static_cast<double>(k * k));
        words.insert(words.end(), times, names[k - 1]);
    }
    return finish_list(draw, std::move(words), question, answer);
}

/// Passages with one or two questions about some of them.
Task make_passages(Draw& draw, int n_questions, int context, const TaskMaterial& material) {
    if (material.passages == nullptr || std::ssize(*material.passages) < n_questions)
        fail(ErrorCode::wrong_use,
             "the passages have too few questions whose "
             "answers they state; give another file");
    const std::vector<TaskMaterial::Passage>& all = *material.passages;
    const auto n = static_cast<std::uint32_t>(all.size());
    for (int attempt = 0; attempt < 1000; ++attempt) {
        std::vector<const TaskMaterial::Passage*> asked;
        Texts blocks, answers;
        std::string question = "\n\n";
        for (int q = 0; q < n_questions; ++q) {
            asked.push_back(&all[draw.below(n)]);
            blocks.push_back("\n\n" + asked.back()->text);
            answers.push_back(asked.back()->answer);
            question += n_questions == 1 ? "Question: " : fmt::format("Question {}: ", q + 1);
            question += asked.back()->question + "\n";
        }
        if (n_questions == 2 && asked[0]->text == asked[1]->text) continue;
        question += n_questions == 1 ? "Answer:" : "Answers to both:";
        const std::string answer = fmt::format(" {}", fmt::join(answers, "; "));
        Texts parts = blocks;
        parts.insert(parts.end(), {question, answer});
        int room = context - 1;
        for (const std::string& part : parts) room -= material.count_tokens(part);
        if (room < 0) continue;
        Texts hay;
        std::set<std::string> used(blocks.begin(), blocks.end());
        for (std::uint32_t i = 0, start = draw.below(n); i < n; ++i) {
            const std::string block = "\n\n" + all[(start + i) % n].text;
            if (used.count(block) > 0 || material.count_tokens(block) > room) continue;
            used.insert(block);
            room -= material.count_tokens(block);
            hay.push_back(block);
        }
        Task task = finish(put_needles(draw, hay, blocks), 0, question, answer, material);
        task.stated = asked.front()->text;
        return task;
    }
    fail(ErrorCode::wrong_use, "no passage fits into a context of {} tokens; make it longer", context);
}

}  // namespace

Task make_ruler_task(TaskKind kind, std::uint64_t seed, std::uint32_t index, int context,
                     const TaskMaterial& material) {
    Draw draw(seed, static_cast<std::uint32_t>(kind), index);
    switch (kind) {
        case TaskKind::ruler_tracking:
            return make_tracking(draw, context, material);
        case TaskKind::ruler_common_words:
            return make_common_words(draw, context, material);
        case TaskKind::ruler_frequent_words:
            return make_frequent_words(draw, context, material);
        case TaskKind::ruler_passage_1:
            return make_passages(draw, 1, context, material);
        case TaskKind::ruler_passage_2:
            return make_passages(draw, 2, context, material);
        default:
            return make_needles(kind, draw, context, material);
    }
}

}  // namespace keyhole
