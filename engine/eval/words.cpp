#include "engine/eval/words.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace keyhole {

namespace {

using Json = nlohmann::json;

WeightedTexts read_weighted(const Json& pairs) {
    WeightedTexts texts;
    for (const Json& pair : pairs) texts.add(pair.at(0).get<std::uint32_t>(), pair.at(1).get<std::string>());
    return texts;
}

/// Replaces each `{name}` by value_of(name), from left to right.
std::string fill(std::string_view text, const std::function<std::string(std::string_view)>& value_of) {
    std::string out;
    while (!text.empty()) {
        const std::size_t open = text.find('{');
        out += text.substr(0, open);
        if (open == std::string_view::npos) break;
        const std::size_t close = text.find('}', open);
        out += value_of(text.substr(open + 1, close - open - 1));
        text.remove_prefix(close + 1);
    }
    return out;
}

std::string without_brackets(std::string text) {
    std::erase_if(text, [](char c) { return c == '[' || c == ']'; });
    return text;
}

/// Splits "What is it? [4821]." into the text before the value, without the blank at its end, and the value.
std::pair<std::string, std::string> split_value(const std::string& text) {
    const std::size_t open = text.find('['), close = text.find(']');
    std::string before = text.substr(0, open);
    while (before.ends_with(' ')) before.pop_back();
    return {before, text.substr(open + 1, close - open - 1)};
}

std::vector<std::string> long_words(const std::string& key) {
    std::vector<std::string> words;
    std::istringstream in(key);
    for (std::string word; std::getline(in, word, ' ');)
        if (word.size() >= 4) words.push_back(word);
    return words;
}

}  // namespace

void WeightedTexts::add(std::uint32_t weight, std::string value) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + weight);
    values.push_back(std::move(value));
}

const std::string& WeightedTexts::draw(Draw& draw) const {
    const auto end = std::upper_bound(ends.begin(), ends.end(), draw.below(ends.back()));
    return values[to_index(end - ends.begin())];
}

TaskWords::TaskWords(const std::filesystem::path& words_json, TaskSplit split, AskBy ask_by)
    : split_(split), ask_by_(ask_by) {
    std::ifstream in(words_json);
    if (!in)
        fail(ErrorCode::bad_file, "cannot open the word lists {}; they belong to Keyhole's assets",
             words_json.string());
    const char* name = split == TaskSplit::train ? "train" : "test";
    try {
        const Json json = json_of_text(std::string(std::istreambuf_iterator<char>(in), {}));
        for (const auto& [rule, lists] : json.at("words").items()) {
            std::istringstream words(lists.at(name).get<std::string>());
            for (std::string word; words >> word;) rules_[rule].add(1, word);
        }
        for (const auto& [rule, texts] : json.at("rules").items())
            rules_[rule] = read_weighted(texts.is_object() ? texts.at(name) : texts);
        for (const auto& [kind, j] : json.at("facts").items()) {
            FactKind& fact = facts_[kind];
            fact.key = j.at("key");
            fact.value = j.at("value");
            for (const Json& slot : j.at("slots")) fact.slots.emplace_back(slot.at(0), slot.at(1));
            fact.statements = read_weighted(j.at("statements"));
            fact.questions = read_weighted(j.at("questions"));
            if (!j.contains("updates")) continue;
            fact.updates = read_weighted(j.at("updates"));
            fact.questions_now = read_weighted(j.at("questions_now"));
        }
        for (const auto& [task, j] : json.at("tasks").items()) {
            if (!j.contains("facts")) continue;
            tasks_[task] = {read_weighted(j.at("facts")), j.at("others")};
        }
        shortest_list_ = json.at("tasks").at("list").at("sizes").at(name).at(0);
        longest_list_ = json.at("tasks").at("list").at("sizes").at(name).at(1);
        longest_answer_ = json.at("tasks").at("passage").at("longest_answer");
    } catch (const Json::exception& error) {
        fail(ErrorCode::bad_file, "the word lists {} are not as they should be: {}", words_json.string(),
             error.what());
    }
}

std::string TaskWords::expand(Draw& draw, std::string_view rule) const {
    if (rule.starts_with('^')) {
        std::string text = expand(draw, rule.substr(1));
        if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
        return text;
    }
    if (rule.starts_with('#')) {
        const std::size_t dash = std::min(rule.find('-'), rule.size());
        const auto number = [&](std::string_view text, int least) {
            constexpr int kMost = 1'000'000;
            const auto value = number_from_text<int>(text, least, kMost);
            if (!value)
                fail(ErrorCode::bad_file, "the word lists have a rule '{}' where #4 or #10-99 is needed",
                     shown_text(rule));
            return *value;
        };
        const int low = number(rule.substr(1, dash - 1), 0);
        std::string text;
        if (dash == rule.size()) {
            for (int i = 0; i < low; ++i) text += static_cast<char>('0' + draw.below(10));
            return text;
        }
        const int high = number(rule.substr(dash + 1), low);
        return std::to_string(low + static_cast<int>(draw.below(static_cast<std::uint32_t>(high - low + 1))));
    }
    const auto found = rules_.find(rule);
    if (found == rules_.end()) fail(ErrorCode::bad_file, "the word lists have no rule '{}'", rule);
    return fill(found->second.draw(draw), [&](std::string_view inner) { return expand(draw, inner); });
}

const std::string& TaskWords::pick_template(Draw& draw, const WeightedTexts& templates) const {
    return split_ == TaskSplit::train ? templates.draw(draw) : templates.values.front();
}

Fact TaskWords::fact(Draw& draw, const FactKind& kind) const {
    std::map<std::string, std::string, std::less<>> slots;
    for (const auto& [slot, rule] : kind.slots) slots[slot] = expand(draw, rule);
    const auto filled = [&](const std::string& text) {
        return fill(text, [&](std::string_view slot) { return slots.find(slot)->second; });
    };
    Fact fact;
    fact.key = filled(kind.key);
    fact.value = slots[kind.value];
    // Both templates are drawn either way, so that the rest of the text is the same.
    const auto ask_for = [&](const std::string& statement, const std::string& question) {
        return split_value(ask_by_ == AskBy::statement ? statement : question);
    };
    const std::string statement = filled(pick_template(draw, kind.statements));
    fact.statement = without_brackets(statement);
    std::tie(fact.ask, fact.answer) = ask_for(statement, filled(pick_template(draw, kind.questions)));
    if (kind.updates.values.empty()) return fact;
    const auto rule = std::find_if(kind.slots.begin(), kind.slots.end(),
                                   [&](const auto& slot) { return slot.first == kind.value; });
    while (slots[kind.value] == fact.value) slots[kind.value] = expand(draw, rule->second);
    const std::string update = filled(pick_template(draw, kind.updates));
    fact.update = without_brackets(update);
    std::tie(fact.update_ask, fact.update_answer) =
        ask_for(update, filled(pick_template(draw, kind.questions_now)));
    return fact;
}

std::vector<Fact> TaskWords::facts(Draw& draw, const std::string& kind, int n) const {
    std::vector<Fact> found;
    std::set<std::string> used, values;
    while (static_cast<int>(found.size()) < n) {
        Fact candidate = fact(draw, facts_.at(kind));
        const std::vector<std::string> words = long_words(candidate.key);
        if (values.contains(candidate.value) ||
            std::any_of(words.begin(), words.end(), [&](const std::string& w) { return used.contains(w); }))
            continue;
        used.insert(words.begin(), words.end());
        values.insert(candidate.value);
        found.push_back(std::move(candidate));
    }
    return found;
}

Fact TaskWords::listing(Draw& draw) const {
    const int n =
        shortest_list_ +
        static_cast<int>(draw.below(static_cast<std::uint32_t>(longest_list_ - shortest_list_ + 1)));
    const std::string rule = rules_.at("list_item").draw(draw);
    std::vector<std::string> items;
    while (static_cast<int>(items.size()) < n) {
        std::string item = expand(draw, rule);
        if (std::find(items.begin(), items.end(), item) == items.end()) items.push_back(std::move(item));
    }
    Fact fact;
    for (const std::string& item : items) fact.answer += (fact.answer.empty() ? "" : ", ") + item;
    const std::string first = expand(draw, "list_first");
    fact.statement = first + " " + fact.answer + ".";
    fact.ask = expand(draw, "list_again");
    if (ask_by_ == AskBy::statement) fact.ask = first;
    return fact;
}

const TaskWords::TaskRule& TaskWords::rule(const std::string& task) const {
    return tasks_.at(task);
}

}  // namespace keyhole
