#include "engine/eval/data_file.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/utf8.h"
#include "engine/model/digest.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <span>

namespace keyhole {

namespace {

constexpr std::size_t kMostLineBytes = std::size_t{16} << 20, kMostLines = 1'000'000, kMostTexts = 1000;
constexpr std::array<std::string_view, 9> kFields = {"system", "context", "prompt", "references", "choices",
                                                     "target", "answer",  "spans",  "asks_for"};

/// Spans that every question has.
constexpr std::array<std::string_view, 4> kParts = {"system", "examples", "context", "prompt"};

std::vector<std::string> read_texts(const JsonField& list) {
    std::vector<std::string> texts;
    const std::size_t n = list.size(kMostTexts);
    for (std::size_t i = 0; i < n; ++i) texts.push_back(list.at(i).text(kMostLineBytes));
    return texts;
}

int read_answer(const JsonField& root, bool is_text, const DataExample& example) {
    const auto index_of = [&](const JsonField& field, const std::string& text) {
        const auto found = std::find(example.choices.begin(), example.choices.end(), text);
        if (found == example.choices.end()) field.wanted("the text of one of the choices");
        return static_cast<int>(found - example.choices.begin());
    };
    const auto answer = root.find("answer");
    if (!answer) {
        if (example.references.empty())
            root.bad("choices need the right one: give 'answer', its number from 0 or its text");
        return index_of(root["references"].at(0), example.references.front());
    }
    if (is_text) return index_of(*answer, answer->text(kMostLineBytes));
    return answer->integer(0, static_cast<int>(example.choices.size()) - 1);
}

/// Reads the spans. Each must stand in what the model reads, and asks_for must name one.
void read_spans(const JsonField& root, const nlohmann::json& json, DataExample& example) {
    const std::string all = example.system + "\n" + example.context + "\n" + example.prompt;
    if (const auto spans = root.find("spans")) {
        if (!json["spans"].is_object() || json["spans"].size() > kMostTexts)
            spans->wanted("an object of texts by name");
        for (const auto& [name, text] : json["spans"].items()) {
            example.spans.emplace_back(name, (*spans)[name.c_str()].text(kMostLineBytes));
            if (std::ranges::find(kParts, name) != kParts.end())
                spans->bad(fmt::format("'{}' is the name of a whole part; take another", name));
            if (example.spans.back().second.empty() ||
                all.find(example.spans.back().second) == std::string::npos)
                spans->bad(
                    fmt::format("the text of '{}' is not in system, context or prompt", shown_text(name)));
        }
    }
    const auto asks_for = root.find("asks_for");
    if (!asks_for) return;
    example.asks_for = asks_for->text(kMostLineBytes);
    if (std::ranges::find(example.spans, example.asks_for, [](const auto& span) { return span.first; }) ==
        example.spans.end())
        asks_for->wanted("the name of one of the spans");
}

/// Refuses two equal choices: none of them would be the more likely one.
void check_differ(const JsonField& field, const std::vector<std::string>& choices) {
    for (std::size_t i = 0; i < choices.size(); ++i)
        for (std::size_t other = 0; other < i; ++other)
            if (choices[i] == choices[other])
                field.at(i).bad(
                    fmt::format("it is the same text as choice {}; each choice is another text", other));
}

DataExample read_example(const nlohmann::json& json, std::string_view name) {
    const JsonField root(json, name);
    if (!json.is_object()) root.wanted("an object with prompt and references, choices or target");
    for (const auto& [field, value] : json.items())
        if (std::find(kFields.begin(), kFields.end(), field) == kFields.end())
            root.bad(fmt::format(
                "the field '{}' is unknown; known are system, context, prompt, references, choices, target, "
                "answer, spans and asks_for",
                shown_text(field)));
    DataExample example;
    if (const auto system = root.find("system")) example.system = system->text(kMostLineBytes);
    if (const auto context = root.find("context")) example.context = context->text(kMostLineBytes);
    example.prompt = root["prompt"].text(kMostLineBytes);
    if (const auto references = root.find("references")) example.references = read_texts(*references);
    if (const auto target = root.find("target")) {
        if (root.find("references") || root.find("choices") || root.find("answer"))
            target->bad("it is the only answer; leave out references, choices and answer");
        example.target = target->text(kMostLineBytes);
        if (example.target.empty()) target->bad("an empty text has no likelihood");
    } else if (const auto choices = root.find("choices")) {
        example.choices = read_texts(*choices);
        if (example.choices.size() < 2) choices->bad("a choice is between 2 texts or more");
        for (std::size_t i = 0; i < example.choices.size(); ++i)
            if (example.choices[i].empty()) choices->at(i).bad("an empty text has no likelihood");
        check_differ(*choices, example.choices);
        const auto answer = json.find("answer");
        example.answer = read_answer(root, answer != json.end() && answer->is_string(), example);
    } else if (root.find("answer")) {
        root["answer"].bad("it names one of the choices, and there are none; give 'choices' or 'references'");
    } else if (example.references.empty()) {
        root.bad("there is no answer; give 'references', a list of at least one text, 'choices' or 'target'");
    }
    read_spans(root, json, example);
    return example;
}

DataExample read_line(std::string_view line, const std::string& name) {
    if (line.size() > kMostLineBytes)
        fail(ErrorCode::bad_file, "cannot read {}: the line has {} bytes, the most is {}", name, line.size(),
             kMostLineBytes);
    if (most_json_values(line) > 4 * kMostTexts)
        fail(ErrorCode::bad_file, "cannot read {}: the line has more values than {} references and choices",
             name, kMostTexts);
    std::string repeated;
    const nlohmann::json json = parse_json(line, name, &repeated);
    if (!repeated.empty())
        fail(ErrorCode::bad_file, "cannot read {}: {} is given twice", name, shown_text(repeated));
    return read_example(json, name);
}

}  // namespace

DataFile parse_data_file(std::string_view text, std::string_view name) {
    DataFile file;
    file.digest = fmt::format("{:016x}", digest_bytes(kDigestSeed, std::as_bytes(std::span(text))));
    std::string_view rest = text;
    for (std::size_t number = 1; !rest.empty(); ++number) {
        if (number > kMostLines)
            fail(ErrorCode::bad_file, "cannot read {}: it has more than {} lines", name, kMostLines);
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
        if (space_at_front(line) == line.size()) continue;
        DataExample example = read_line(line, fmt::format("{}:{}", name, number));
        example.line = static_cast<int>(number);
        if (!file.examples.empty() && example.target.empty() == file.has_targets())
            fail(ErrorCode::bad_file,
                 "cannot read {}:{}: target: line {} has {}, and this one has {}; write two files", name,
                 number, file.examples.front().line, file.has_targets() ? "one" : "none",
                 file.has_targets() ? "none" : "one");
        if (!file.examples.empty() && example.choices.empty() == file.has_choices())
            fail(ErrorCode::bad_file,
                 "cannot read {}:{}: choices: line {} has {}, and this one has {}; write two files", name,
                 number, file.examples.front().line, file.has_choices() ? "choices" : "none",
                 file.has_choices() ? "none" : "choices");
        file.examples.push_back(std::move(example));
    }
    if (file.examples.empty())
        fail(ErrorCode::bad_file, "cannot read {}: it has no line with a question", name);
    return file;
}

DataFile read_data_file(const std::filesystem::path& path) {
    return parse_data_file(read_text_input(path), path.string());
}

}  // namespace keyhole
