#include "app/lab/lab_table.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/utf8.h"
#include "engine/eval/answer_file.h"
#include "engine/policy/lane_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace keyhole {

namespace {

constexpr std::size_t kLongLine = 16;  // bytes of a line that two students hardly write alike

/// Returns the formulas of exercise 6 without blanks; empty: there are none.
std::string own_line(const HandIn& hand_in) {
    if (hand_in.own_lane.empty()) return "";
    std::string line;
    try {
        const PolicyParams policy = parse_lane_spec(hand_in.own_lane).policy;
        const PolicyParams preset = preset_params(policy.preset);
        for (const auto& [own, usual] :
             {std::pair(policy.score, preset.score), std::pair(policy.choose, preset.choose)})
            if (own != usual) line += own.text;
        for (const Override& o : policy.overrides)
            if (o.is_formula() && o.field != Override::Field::protect) line += o.formula.text;
    } catch (const Error&) {
        line = hand_in.own_lane;
    }
    std::erase(line, ' ');
    return line;
}

/// Returns which of the exercises 1 to 3 have equal answers in both.
std::vector<int> equal_numbers(const HandIn& a, const HandIn& b) {
    std::vector<int> equal;
    if (a.stored == b.stored && a.stored != HandIn::Stored{}) equal.push_back(1);
    if (const auto kept = positions_of(a.kept); kept && kept == positions_of(b.kept)) equal.push_back(2);
    if (a.smallest && a.smallest == b.smallest) equal.push_back(3);
    return equal;
}

int n_right_of(const HandInCheck& check, const std::vector<int>& exercises) {
    return static_cast<int>(std::count_if(exercises.begin(), exercises.end(), [&](int exercise) {
        return check.exercises[to_index(exercise - 1)].passes;
    }));
}

/// Returns what of `mine` looks copied from `other`; empty: nothing.
std::string copied_from(const LabRow& mine, const LabRow& other) {
    const HandIn &a = mine.check.hand_in, &b = other.check.hand_in;
    const std::string from = fmt::format("{} ({})", b.name, other.file);
    if (seed_of_name(a.name) == seed_of_name(b.name)) return "same name as " + from;
    std::vector<int> equal = equal_numbers(a, b);
    const std::string line = own_line(a);
    const bool same_line = !line.empty() && line == own_line(b);
    const bool owns = n_right_of(mine.check, equal) > n_right_of(other.check, equal);
    const bool same_numbers = equal.size() >= 2 && !owns;
    if (!same_numbers && !(same_line && line.size() >= kLongLine)) return "";
    if (!same_numbers) equal.clear();
    if (same_line) equal.push_back(6);
    return fmt::format("answers {} as {}", fmt::join(equal, ", "), from);
}

std::size_t count_characters(std::string_view text) {
    std::size_t n = 0;
    for (; !text.empty(); ++n) text.remove_prefix(std::max<std::size_t>(utf8_length(text), 1));
    return n;
}

std::string padded(const std::string& text, std::size_t width) {
    return text + std::string(width - std::min(count_characters(text), width), ' ');
}

const char* mark_of(const ExerciseCheck& check) {
    return !check.answered ? "-" : check.passes ? "yes" : "NO";
}

/// Returns a field that no spreadsheet takes for a formula.
std::string safe_field(const std::string& text) {
    const bool is_formula = !text.empty() && std::string_view("=+-@").find(text[0]) != std::string_view::npos;
    return csv_field(is_formula ? "'" + text : text);
}

std::string copied_text(const LabRow& row) {
    return fmt::format("{}", fmt::join(row.copied, "; "));
}

}  // namespace

void mark_copies(std::vector<LabRow>& rows) {
    for (LabRow& mine : rows) {
        if (!mine.fault.empty()) continue;
        const HandIn& hand_in = mine.check.hand_in;
        std::string owner;
        for (const LabRow& other : rows) {
            if (&other == &mine || !other.fault.empty()) continue;
            if (!hand_in.has_own_seed() && seed_of_name(other.check.hand_in.name) == hand_in.seed)
                owner = fmt::format("the seed is that of {} ({})", other.check.hand_in.name, other.file);
            if (const std::string copied = copied_from(mine, other); !copied.empty())
                mine.copied.push_back(copied);
        }
        if (!hand_in.has_own_seed())
            mine.copied.insert(
                mine.copied.begin(),
                owner.empty() ? fmt::format("the seed is not that of {}", hand_in.name) : owner);
    }
}

std::string exercise_lines(const HandInCheck& check, bool with_measured) {
    std::string out;
    const HandIn& in = check.hand_in;
    if (!in.has_own_seed())
        out += fmt::format("  seed                     NO   {} is not that of {}, which is {}\n", in.seed,
                           in.name, seed_of_name(in.name));
    for (int i = 1; i <= kExercises; ++i) {
        const ExerciseCheck& one = check.exercises[to_index(i - 1)];
        out += fmt::format("{} {:<24} {:<3}  {}", i, exercise_title(i), mark_of(one), one.text);
        if (with_measured && !one.measured.empty() && one.measured != one.text)
            out += fmt::format("; measured: {}", one.measured);
        out += "\n";
    }
    return out;
}

std::string lab_table(std::span<const LabRow> rows) {
    std::size_t width = 7;
    for (const LabRow& row : rows)
        if (row.fault.empty()) width = std::max(width, count_characters(row.check.hand_in.name));
    std::string out = padded("student", width);
    for (int i = 1; i <= kExercises; ++i) out += fmt::format("  {:<3}", i);
    out += "  passed  copied\n";
    for (const LabRow& row : rows) {
        if (!row.fault.empty()) {
            out += row.fault + "\n";
            continue;
        }
        out += padded(row.check.hand_in.name, width);
        for (const ExerciseCheck& one : row.check.exercises) out += fmt::format("  {:<3}", mark_of(one));
        out += fmt::format("  {} of {}{}{}\n", row.check.n_passed(), kExercises,
                           row.copied.empty() ? "" : "  ", copied_text(row));
    }
    return out;
}

std::string lab_csv(std::span<const LabRow> rows) {
    std::string out = "file,student,seed,own_seed";
    for (int i = 1; i <= kExercises; ++i) out += fmt::format(",exercise_{}", i);
    out += ",passed,copied,fault\n";
    for (const LabRow& row : rows) {
        const HandIn& in = row.check.hand_in;
        if (!row.fault.empty()) {
            out += fmt::format("{},,,{},,,{}\n", safe_field(row.file), std::string(kExercises, ','),
                               safe_field(row.fault));
            continue;
        }
        out += fmt::format("{},{},{},{}", safe_field(row.file), safe_field(in.name), in.seed,
                           in.has_own_seed() ? 1 : 0);
        for (const ExerciseCheck& one : row.check.exercises) out += one.passes ? ",1" : ",0";
        out += fmt::format(",{},{},\n", row.check.n_passed(), safe_field(copied_text(row)));
    }
    return out;
}

nlohmann::json lab_json(std::span<const LabRow> rows, bool with_measured) {
    nlohmann::json hand_ins = nlohmann::json::array();
    for (const LabRow& row : rows) {
        nlohmann::json& json = hand_ins.emplace_back();
        json["file"] = row.file;
        if (!row.fault.empty()) {
            json["fault"] = row.fault;
            continue;
        }
        const HandIn& in = row.check.hand_in;
        json.update({{"student", in.name},
                     {"seed", in.seed},
                     {"own_seed", in.has_own_seed()},
                     {"passed", row.check.n_passed()},
                     {"copied", row.copied}});
        for (int i = 1; i <= kExercises; ++i) {
            const ExerciseCheck& one = row.check.exercises[to_index(i - 1)];
            nlohmann::json& exercise = json["exercises"].emplace_back();
            exercise = {{"exercise", i},
                        {"title", exercise_title(i)},
                        {"answered", one.answered},
                        {"passes", one.passes},
                        {"text", one.text}};
            if (with_measured) exercise["measured"] = one.measured;
        }
    }
    return hand_ins;
}

}  // namespace keyhole
