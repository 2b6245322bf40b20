#include "engine/eval/tasks.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/eval/drawn_parts.h"
#include "engine/eval/instruction_task.h"
#include "engine/eval/ruler_tasks.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>

namespace keyhole {

namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::size_t kLongestSentence = 300;  // in bytes

struct KindText {
    std::string_view name, help;
};
constexpr std::array<KindText, kAllTaskKinds> kKinds = {{
    {"needle", "one code in narrative"},
    {"fact", "one of three facts in words: where things are kept, where people live, names of animals"},
    {"needles", "one of five codes"},
    {"latest", "the newer of two codes of one thing"},
    {"dialogue", "who of four said it"},
    {"list", "a list of four to eight words, once more"},
    {"passage", "what a section of a tale says (FairytaleQA)"},
    {"ruler-single-1", "one code in repeated sentences"},
    {"ruler-single-2", "one code in narrative"},
    {"ruler-single-3", "one UUID in narrative"},
    {"ruler-multikey-1", "one of four codes in narrative"},
    {"ruler-multikey-2", "one code in a text of codes"},
    {"ruler-multikey-3", "one UUID, named by another, in a text of UUIDs"},
    {"ruler-multivalue", "four codes of one thing"},
    {"ruler-multiquery", "the codes of four things"},
    {"ruler-tracking", "five names that take over one value from one another"},
    {"ruler-common-words", "the words of a list that come ten times"},
    {"ruler-frequent-words", "the three most frequent of made-up words"},
    {"ruler-passage-1", "what one of several sections of tales says"},
    {"ruler-passage-2", "what two of several sections of tales say"},
    {"instructions", "one of four instructions at the start, to be followed at the end"},
}};

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
    std::vector<std::string_view> parts;
    for (std::size_t end = 0; end != std::string_view::npos;) {
        end = text.find(separator);
        parts.push_back(text.substr(0, end));
        if (end != std::string_view::npos) text.remove_prefix(end + separator.size());
    }
    return parts;
}

std::string_view stripped(std::string_view text, std::string_view characters) {
    const std::size_t begin = text.find_first_not_of(characters);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(characters) - begin + 1);
}

std::vector<std::string_view> words_of(std::string_view paragraph) {
    std::vector<std::string_view> words;
    constexpr std::string_view kBlanks = " \t\r\n";
    for (std::size_t at = paragraph.find_first_not_of(kBlanks); at != std::string_view::npos;) {
        const std::size_t end = std::min(paragraph.find_first_of(kBlanks, at), paragraph.size());
        words.push_back(paragraph.substr(at, end - at));
        at = paragraph.find_first_not_of(kBlanks, end);
    }
    return words;
}

/// Returns whether the word ends a sentence: it has an end mark, is no title such as "Mr.", and the next word
/// begins like a sentence.
bool ends_sentence(std::string_view word, std::string_view next) {
    const std::size_t last = word.find_last_not_of("\"')");
    const std::string_view core = word.substr(0, last == std::string_view::npos ? 0 : last + 1);
    if (core.empty() || std::string_view(".!?").find(core.back()) == std::string_view::npos) return false;
    std::string_view title = core.substr(0, core.size() - 1);
    title.remove_prefix(std::min(title.find_first_not_of("\"'("), title.size()));
    for (std::string_view known : {"Mr", "Mrs", "Dr", "St"})
        if (title == known) return false;
    return std::string_view("\"'(").find(next.front()) != std::string_view::npos ||
           (next.front() >= 'A' && next.front() <= 'Z');
}

std::string finished(const std::string& text) {
    return text.substr(std::min(text.find_first_not_of(" \n"), text.size()));
}

/// Makes a prompt with section and question at the end; unrelated narrative fills the context before them.
Task make_passage(Draw& draw, int context, const TaskMaterial& material) {
    if (material.passages == nullptr || material.passages->empty())
        fail(ErrorCode::wrong_use,
             "the passages have no question whose answer they state; give another file");
    for (int attempt = 0; attempt < 1000; ++attempt) {
        const auto n = static_cast<std::uint32_t>(material.passages->size());
        const TaskMaterial::Passage& passage = (*material.passages)[draw.below(n)];
        const std::string block = "\n\n" + passage.text,
                          question = "\n\nQuestion: " + passage.question + "\nAnswer:",
                          answer = " " + passage.answer;
        const int room = context - 1 - material.count_tokens(block) - material.count_tokens(question) -
                         material.count_tokens(answer);
        if (room < 0) continue;
        std::string prompt;
        for (const std::string* sentence : draw_narrative(draw, material, room).sentences)
            prompt += *sentence;
        const std::string after =
            passage.text.substr(passage.text.find(passage.answer) + passage.answer.size());
        return {finished(prompt + block + question), answer,
                material.count_tokens(after) + material.count_tokens(question), question, passage.text};
    }
    fail(ErrorCode::wrong_use, "no passage fits into a context of {} tokens; make it longer", context);
}

/// The parts that a prompt is assembled from.
struct Parts {
    std::string asked;                ///< the block with the fact that is asked for
    int tail = 0;                     ///< tokens of the block after that fact
    std::vector<std::string> others;  ///< placed at random
    std::optional<std::string> old;   ///< placed before `asked`
    std::string question, answer;
    std::string stated;  ///< the fact itself, within `asked`
};

Parts make_parts(TaskKind kind, Draw& draw, const TaskMaterial& material) {
    if (kind == TaskKind::list) {
        Fact fact = material.words->listing(draw);
        return {" " + fact.statement, 0, {}, {}, " " + fact.ask, " " + fact.answer, fact.statement};
    }
    const TaskWords::TaskRule& rule = material.words->rule(std::string(task_name(kind)));
    const std::vector<Fact> facts = material.words->facts(draw, rule.kinds.draw(draw), rule.n_others + 1);
    if (kind == TaskKind::latest)
        return {" " + facts[0].update,
                0,
                {},
                " " + facts[0].statement,
                " " + facts[0].update_ask,
                " " + facts[0].update_answer,
                facts[0].update};
    Parts parts;
    std::size_t asked = 0;
    // The speakers follow one another: one block, in the order of the facts.
    if (kind == TaskKind::dialogue) {
        asked = draw.below(static_cast<std::uint32_t>(facts.size()));
        for (std::size_t i = 0; i < facts.size(); ++i) {
            parts.asked += (i == 0 ? "\n\n" : " ") + facts[i].statement;
            if (i > asked) parts.tail += material.count_tokens(" " + facts[i].statement);
        }
    } else {
        parts.asked = " " + facts[0].statement;
        for (std::size_t i = 1; i < facts.size(); ++i) parts.others.push_back(" " + facts[i].statement);
    }
    parts.question = " " + facts[asked].ask;
    parts.answer = " " + facts[asked].answer;
    parts.stated = facts[asked].statement;
    return parts;
}

}  // namespace

std::string_view task_name(TaskKind kind) {
    return kKinds[to_index(kind)].name;
}

std::string_view task_help(TaskKind kind) {
    return kKinds[to_index(kind)].help;
}

std::vector<TaskKind> parse_tasks(std::string_view text) {
    std::vector<TaskKind> kinds;
    const auto add = [&](int i) {
        const auto kind = static_cast<TaskKind>(i);
        if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    };
    for (std::string_view name : split(text, ",")) {
        const auto known =
            std::find_if(kKinds.begin(), kKinds.end(), [&](const KindText& k) { return k.name == name; });
        if (known != kKinds.end()) {
            add(static_cast<int>(known - kKinds.begin()));
        } else if (name == "recall" || name == "all") {
            for (int i = 0; i < kTaskKinds; ++i)
                if (name == "all" || static_cast<TaskKind>(i) != TaskKind::passage) add(i);
        } else if (name == "ruler") {
            for (int i = kTaskKinds; i < kTaskKinds + kRulerKinds; ++i) add(i);
        } else {
            std::string names;
            for (const KindText& k : kKinds) names += fmt::format("{}, ", k.name);
            fail(ErrorCode::wrong_use,
                 "there is no task '{}'; tasks are {}recall, all (without RULER's) and ruler", name, names);
        }
    }
    return kinds;
}

namespace {

Task make_any(TaskKind kind, std::uint64_t seed, std::uint32_t index, int context, DistanceRange distance,
              const TaskMaterial& material) {
    Draw draw(seed, static_cast<std::uint32_t>(kind), index);
    if (is_ruler(kind)) return make_ruler_task(kind, seed, index, context, material);
    if (kind == TaskKind::instructions) return make_instructions(draw, context, material);
    if (kind == TaskKind::passage) return make_passage(draw, context, material);
    const auto& count = material.count_tokens;
    Parts parts = make_parts(kind, draw, material);
    std::vector<int> sizes;
    for (const std::string& other : parts.others) sizes.push_back(count(other));
    const int others_size = std::accumulate(sizes.begin(), sizes.end(), 0);
    const Narrative narrative =
        draw_narrative(draw, material,
                       context - 1 - count(parts.question) - count(parts.answer) - count(parts.asked) -
                           others_size - (parts.old ? count(*parts.old) : 0));
    const std::vector<int>& edges = narrative.edges;
    const int near = count(parts.question) + parts.tail;
    const int high = std::max(near, std::min(distance.high, near + edges.back() + others_size));
    const int low = std::min(std::max(distance.low, near), high);
    const int wanted = low + static_cast<int>(draw.below(static_cast<std::uint32_t>(high - low + 1)));
    const auto n_edges = static_cast<std::uint32_t>(edges.size());
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < parts.others.size(); ++i) places.push_back(draw.below(n_edges));

    // Find the edge at which the asked block is closest to the wanted distance. Other blocks at that edge
    // stand before it.
    std::size_t at = 0;
    int found = 0;
    for (std::size_t k = 0; k < edges.size(); ++k) {
        int here = near + edges.back() - edges[k];
        for (std::size_t i = 0; i < places.size(); ++i)
            if (places[i] > k) here += sizes[i];
        if (k > 0 && std::abs(here - wanted) >= std::abs(found - wanted)) continue;
        at = k;
        found = here;
    }
    if (parts.old) {
        places.push_back(draw.below(static_cast<std::uint32_t>(at) + 1));
        parts.others.push_back(*parts.old);
    }
    std::string text;
    for (std::size_t k = 0; k < edges.size(); ++k) {
        for (std::size_t i = 0; i < places.size(); ++i)
            if (places[i] == k) text += parts.others[i];
        if (k == at) text += parts.asked;
        if (k < narrative.sentences.size()) text += *narrative.sentences[k];
    }
    return {finished(text + parts.question), parts.answer, found, parts.question, parts.stated};
}

}  // namespace

Task make_task(TaskKind kind, std::uint64_t seed, std::uint32_t index, int context, DistanceRange distance,
               const TaskMaterial& material) {
    try {
        return make_any(kind, seed, index, context, distance, material);
    } catch (const Error& error) {
        fail(error.code(), "task {}: {}", task_name(kind), error.what());
    }
}

std::vector<std::string> split_sentences(std::string_view text) {
    std::vector<std::string> sentences;
    for (std::string_view document : split(text, kEndOfText)) {
        for (std::string_view paragraph : split(document, "\n\n")) {
            const std::vector<std::string_view> words = words_of(paragraph);
            if (words.empty() ||
                std::string_view(".!?\"'").find(words.back().back()) == std::string_view::npos)
                continue;
            std::string sentence;
            const char* lead = "\n\n";
            for (std::size_t i = 0; i < words.size(); ++i) {
                sentence += (sentence.empty() ? "" : " ");
                sentence += words[i];
                if (i + 1 < words.size() && !ends_sentence(words[i], words[i + 1])) continue;
                if (sentence.size() <= kLongestSentence) {
                    sentences.push_back(lead + sentence);
                    lead = " ";
                }
                sentence.clear();
            }
        }
    }
    return sentences;
}

std::vector<TaskMaterial::Passage> split_passages(std::string_view text, int longest_answer) {
    std::vector<TaskMaterial::Passage> found;
    for (std::string_view document : split(text, kEndOfText)) {
        const std::vector<std::string_view> parts = split(stripped(document, "\n"), "\n\nQuestion: ");
        for (std::size_t i = 1; i < parts.size(); ++i) {
            const std::size_t at = parts[i].find("\nAnswer: ");
            if (at == std::string_view::npos) continue;
            const std::string_view answer = stripped(parts[i].substr(at + 9), "\n");
            if (answer.empty() || answer.size() > to_index(longest_answer) ||
                parts[0].find(answer) == std::string_view::npos)
                continue;
            found.push_back(
                {std::string(parts[0]), std::string(parts[i].substr(0, at)), std::string(answer)});
        }
    }
    return found;
}

std::vector<std::string> vocabulary_of(const std::vector<std::string>& sentences) {
    std::set<std::string> words;
    const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
    for (const std::string& sentence : sentences)
        for (std::size_t at = 0; at < sentence.size();) {
            if (sentence[at] != ' ') {
                ++at;
                continue;
            }
            std::size_t end = ++at;
            while (end < sentence.size() && is_letter(sentence[end])) ++end;
            // A whole word, between a blank and a blank or an end mark.
            const bool ends = end == sentence.size() ||
                              std::string_view(" .,;:!?").find(sentence[end]) != std::string_view::npos;
            if (ends && end - at >= 4 && end - at <= 9) words.insert(sentence.substr(at, end - at));
            at = end;
        }
    return {words.begin(), words.end()};
}

}  // namespace keyhole
