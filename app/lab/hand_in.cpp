#include "app/lab/hand_in.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace keyhole {

namespace {

constexpr JsonBounds kHandInBounds = {1 << 18, 2000};
constexpr std::size_t kLongestAnswer = 4096, kMostPositions = 4096;
constexpr int kMostPosition = 1 << 24;

/// Returns the members of an exercise's answer.
const std::vector<const char*>& answer_names(int exercise) {
    static const std::vector<std::vector<const char*>> kNames = {
        {"full", "window", "bytes"}, {"kept"}, {"budget"}, {"window", "h2o", "tova"}, {"lane"}, {"lane"}};
    return kNames.at(static_cast<std::size_t>(exercise - 1));
}

bool is_text_answer(int exercise) {
    return exercise == 2 || exercise >= 5;
}

/// An exercise's answer, whose members are known. A member that is null or missing is not answered.
class ExerciseAnswer {
  public:
    ExerciseAnswer(const nlohmann::json& root, const JsonField& exercises, int exercise)
        : field_(exercises.at(static_cast<std::size_t>(exercise - 1))["answer"]) {
        const nlohmann::json& answer = root["exercises"][static_cast<std::size_t>(exercise - 1)]["answer"];
        if (!answer.is_object()) field_.wanted("an object");
        const std::vector<const char*>& known = answer_names(exercise);
        for (const auto& [name, value] : answer.items())
            if (std::find(known.begin(), known.end(), name) == known.end())
                field_.bad(fmt::format("'{}' is not asked for; wanted is {}", shown_text(name),
                                       fmt::join(known, ", ")));
    }
    std::optional<std::int64_t> whole(const char* name) const {
        const auto member = given(name);
        return member ? std::optional(member->whole(0, std::int64_t{1} << 50)) : std::nullopt;
    }
    std::optional<int> position(const char* name) const {
        const auto member = given(name);
        return member ? std::optional(member->integer(0, kMostPosition)) : std::nullopt;
    }
    std::optional<double> percent(const char* name) const {
        const auto member = given(name);
        return member ? std::optional(member->number(0, 100)) : std::nullopt;
    }
    std::string text(const char* name) const {
        const auto member = given(name);
        if (!member) return "";
        std::string text = member->text(kLongestAnswer);
        const std::size_t begin = text.find_first_not_of(" \t\r\n");
        if (begin == std::string::npos) return "";
        return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
    }

  private:
    std::optional<JsonField> given(const char* name) const {
        const std::optional<JsonField> member = field_.find(name);
        return member && !member->is_null() ? member : std::nullopt;
    }
    JsonField field_;
};

void read_answers(const nlohmann::json& root, const JsonField& exercises, HandIn& out) {
    const auto answer = [&](int exercise) { return ExerciseAnswer(root, exercises, exercise); };
    const ExerciseAnswer stored = answer(1), known = answer(4);
    out.stored = {stored.whole("full"), stored.whole("window"), stored.whole("bytes")};
    out.kept = answer(2).text("kept");
    out.smallest = answer(3).position("budget");
    out.known = {known.percent("window"), known.percent("h2o"), known.percent("tova")};
    out.byte_lane = answer(5).text("lane");
    out.own_lane = answer(6).text("lane");
}

}  // namespace

HandIn parse_hand_in(std::string_view text, const std::filesystem::path& file) {
    const std::string shown = file.string();
    const nlohmann::json root = json_object_of(text, file, kHandInBounds.values);
    const JsonField field(root, shown);
    HandIn out;
    out.file = printable_text(shown);
    const JsonField name = field["name"];
    try {
        out.name = student_name(name.text(1024));
    } catch (const Error& error) {
        if (error.code() != ErrorCode::wrong_use) throw;
        name.bad(error.what());
    }
    out.seed = field["seed"].natural();
    const JsonField exercises = field["exercises"];
    if (exercises.size(kExercises) != kExercises)
        exercises.bad(fmt::format("there are {} exercises", kExercises));
    read_answers(root, exercises, out);
    return out;
}

HandIn read_hand_in(const std::filesystem::path& file) {
    return parse_hand_in(read_text_file(file, kHandInBounds.bytes), file);
}

std::string empty_hand_in(const std::string& name, const StudentNumbers& numbers) {
    nlohmann::ordered_json json = {{"name", name}, {"seed", numbers.seed}};
    for (int exercise = 1; exercise <= kExercises; ++exercise) {
        nlohmann::ordered_json answer;
        for (const char* member : answer_names(exercise))
            answer[member] = is_text_answer(exercise) ? nlohmann::ordered_json("") : nlohmann::ordered_json();
        json["exercises"].push_back({{"exercise", exercise},
                                     {"title", exercise_title(exercise)},
                                     {"question", exercise_question(exercise, numbers)},
                                     {"answer", answer}});
    }
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string file_name_of(std::string_view name) {
    std::string file;
    for (char c : printable_text(name)) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        const bool is_other_letter = (static_cast<unsigned char>(c) & 0x80u) != 0;  // a part of one in UTF-8
        const bool stays = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || is_other_letter;
        if (stays)
            file += c;
        else if (!file.empty() && file.back() != '-')
            file += '-';
    }
    if (file.ends_with('-')) file.pop_back();
    return file.empty() ? "hand-in" : file;
}

std::optional<std::vector<int>> positions_of(std::string_view ranges) {
    std::vector<int> positions;
    constexpr std::string_view kBetween = " ,;\t";
    for (std::size_t at = ranges.find_first_not_of(kBetween); at != std::string_view::npos;) {
        const std::size_t end = std::min(ranges.find_first_of(kBetween, at), ranges.size());
        const std::string_view range = ranges.substr(at, end - at);
        const std::size_t dash = range.find('-');
        const auto first = number_from_text<int>(range.substr(0, dash), 0, kMostPosition);
        const auto last = dash == std::string_view::npos
                              ? first
                              : number_from_text<int>(range.substr(dash + 1), 0, kMostPosition);
        if (!first || !last || *last < *first) return std::nullopt;
        if (static_cast<std::size_t>(*last - *first) + positions.size() >= kMostPositions)
            return std::nullopt;
        for (int p = *first; p <= *last; ++p) positions.push_back(p);
        at = ranges.find_first_not_of(kBetween, end);
    }
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    return positions.empty() ? std::nullopt : std::optional(positions);
}

std::string ranges_of(const std::vector<int>& positions) {
    std::string text;
    for (std::size_t i = 0; i < positions.size();) {
        std::size_t last = i;
        while (last + 1 < positions.size() && positions[last + 1] == positions[last] + 1) ++last;
        text += text.empty() ? "" : " ";
        text +=
            last == i ? fmt::format("{}", positions[i]) : fmt::format("{}-{}", positions[i], positions[last]);
        i = last + 1;
    }
    return text;
}

}  // namespace keyhole
