#include "app/base/saved_policies.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/user_folder.h"
#include "engine/policy/preset_table.h"
#include "engine/policy/spec_change.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostPolicyName = 40, kMostAbout = 400;
constexpr JsonBounds kPolicyBounds = {2 << 20, 16};
constexpr std::array<std::string_view, 4> kPolicyKeys = {"name", "spec", "about", "version"};

bool is_name_of_preset(std::string_view word) {
    return std::ranges::any_of(presets(),
                               [&](const PresetRow& row) { return row.name == spec_text::lower_case(word); });
}

/// Returns what is wrong with a name; empty: nothing.
std::string fault_of_name(std::string_view name) {
    const auto is_letter = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    };
    const bool fits =
        !name.empty() && name.size() <= kMostPolicyName && is_letter(name.front()) &&
        !name.ends_with(kPolicyFileEnd) &&
        std::ranges::all_of(name, [&](char c) { return is_letter(c) || c == '-' || c == '_' || c == '.'; });
    if (!fits)
        return fmt::format(
            "'{}' is no name of a policy: it has 1 to {} letters, digits, '-', '_' and '.', and begins with "
            "a letter or digit",
            shown_text(name), kMostPolicyName);
    if (is_name_of_preset(name)) return fmt::format("'{}' is a preset; take another name", name);
    return "";
}

/// Returns what is wrong with a sentence; empty: nothing.
std::string fault_of_about(std::string_view about) {
    if (about.size() <= kMostAbout && printable_text(about) == about) return "";
    return fmt::format("the sentence about it is one line of at most {} bytes", kMostAbout);
}

std::string name_of_file(const fs::path& file) {
    const std::string name = file.filename().string();
    return name.ends_with(kPolicyFileEnd) ? name.substr(0, name.size() - kPolicyFileEnd.size()) : name;
}

bool is_path_of_policy(std::string_view word) {
    return word.find('/') != std::string_view::npos || word.ends_with(kPolicyFileEnd);
}

bool is_saved(const fs::path& file) {
    std::error_code ignored;
    return fs::symlink_status(file, ignored).type() != fs::file_type::not_found;
}

/// Returns the spec in its shortest form.
std::string spec_in_file(const JsonField& field) {
    try {
        LaneSpec spec = parse_stored_lane_spec(field.text(kPolicyBounds.bytes));
        spec.name.clear();
        return format_lane_spec(spec);
    } catch (const Error& error) {
        if (error.code() == ErrorCode::bad_file) throw;
        field.bad(error.what());
    }
}

/// Returns the policy that a word stands for: nullopt for a preset and for what is not known.
std::optional<SavedPolicy> policy_of_word(std::string_view word) {
    if (is_path_of_policy(word)) return read_saved_policy(word);
    if (!fault_of_name(word).empty()) return std::nullopt;
    const fs::path file = saved_policy_file(word);
    if (file.empty() || !is_saved(file)) return std::nullopt;
    return read_saved_policy(file);
}

std::vector<std::string> saved_names() {
    std::vector<std::string> names;
    for (const ListedPolicy& one : list_saved_policies()) names.push_back(one.policy.name);
    return names;
}

/// Throws if the word is nearly the name of a saved policy.
void refuse_near_name(std::string_view word) {
    if (!fault_of_name(word).empty()) return;
    std::vector<std::string_view> of_presets;
    for (const PresetRow& row : presets()) of_presets.push_back(row.name);
    if (spec_text::near_word(word, of_presets)) return;
    const std::vector<std::string> names = saved_names();
    const std::vector<std::string_view> views(names.begin(), names.end());
    if (const auto near = spec_text::near_word(word, views))
        fail(ErrorCode::wrong_use,
             "there is no preset and no saved policy '{}', did you mean '{}'? saved: {}", word, *near,
             fmt::join(names, " "));
}

/// Returns the name of a lane whose keys differ from the saved ones: "my-rule budget 64".
std::string name_with_items(const std::string& name, std::string_view items) {
    constexpr std::size_t kLongestLaneName = 60;
    std::string all = fmt::format("{} {}", name, items);
    std::ranges::replace_if(
        all, [](char c) { return c == '=' || c == ':' || c == ','; }, ' ');
    return all.size() <= kLongestLaneName && printable_text(all) == all ? all : name;
}

}  // namespace

fs::path saved_policies_folder() {
    const fs::path data = user_folder(UserFolder::data);
    return data.empty() ? data : data / "policies";
}

fs::path saved_policy_file(std::string_view name) {
    const fs::path folder = saved_policies_folder();
    return folder.empty() ? folder : folder / fmt::format("{}{}", name, kPolicyFileEnd);
}

SavedPolicy read_saved_policy(const fs::path& file) {
    const nlohmann::json root = read_json_object(file, kPolicyBounds);
    const std::string path = file.string();
    const JsonField in(root, path);
    for (const auto& [key, value] : root.items())
        if (std::ranges::find(kPolicyKeys, key) == kPolicyKeys.end())
            fail(ErrorCode::bad_file, "cannot read {}: '{}' is no key of a saved policy, which has {}", path,
                 shown_text(key), fmt::join(kPolicyKeys, ", "));
    SavedPolicy policy;
    policy.name = in["name"].text(kMostPolicyName);
    if (file.parent_path() == saved_policies_folder()) policy.name = name_of_file(file);
    if (const std::string fault = fault_of_name(policy.name); !fault.empty()) in["name"].bad(fault);
    policy.spec = spec_in_file(in["spec"]);
    if (const auto about = in.find("about")) {
        policy.about = about->text(kMostAbout);
        if (const std::string fault = fault_of_about(policy.about); !fault.empty()) about->bad(fault);
    }
    if (const auto version = in.find("version")) policy.version = printable_text(version->text(kMostAbout));
    return policy;
}

namespace {

std::vector<fs::path> saved_files() {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator entry(saved_policies_folder(), error), end; !error && entry != end;
         entry.increment(error))
        if (entry->path().filename().string().ends_with(kPolicyFileEnd)) files.push_back(entry->path());
    return files;
}

}  // namespace

std::vector<ListedPolicy> list_saved_policies() {
    std::vector<ListedPolicy> all;
    for (const fs::path& file : saved_files()) {
        ListedPolicy one{file, {}, {}};
        try {
            one.policy = read_saved_policy(file);
        } catch (const Error& fault) {
            one.policy.name = printable_text(name_of_file(file));
            one.fault = fault.what();
        }
        all.push_back(std::move(one));
    }
    std::ranges::sort(all, {}, [](const ListedPolicy& one) { return one.policy.name; });
    return all;
}

/// An editor that writes a file in place changes the file alone, not the folder.
std::vector<SavedPolicyList::Seen> SavedPolicyList::seen_now() {
    std::vector<Seen> seen;
    std::error_code ignored;
    for (const fs::path& file : saved_files())
        seen.push_back({file, fs::last_write_time(file, ignored), fs::file_size(file, ignored)});
    return seen;
}

const std::vector<ListedPolicy>& SavedPolicyList::now() {
    if (std::vector<Seen> seen = seen_now(); seen != seen_) {
        seen_ = std::move(seen);
        all_ = list_saved_policies();
    }
    return all_;
}

std::string save_policy(const SavedPolicy& policy) {
    if (const std::string fault = fault_of_name(policy.name); !fault.empty())
        fail(ErrorCode::wrong_use, "cannot save the policy: {}", fault);
    if (const std::string fault = fault_of_about(policy.about); !fault.empty())
        fail(ErrorCode::wrong_use, "cannot save the policy {}: {}", policy.name, fault);
    const fs::path file = saved_policy_file(policy.name);
    if (file.empty())
        fail(ErrorCode::io, "cannot save the policy {}: set HOME or XDG_DATA_HOME", policy.name);
    LaneSpec spec = parse_lane_spec(policy.spec);
    spec.name.clear();
    std::string before;
    if (is_saved(file)) {
        try {
            before = read_saved_policy(file).spec;
        } catch (const Error&) {
            before = "a file that cannot be read";
        }
    }
    make_folder(file.parent_path(), "saved policies");
    const nlohmann::ordered_json out = {{"name", policy.name},
                                        {"spec", format_lane_spec(spec)},
                                        {"about", policy.about},
                                        {"version", policy.version}};
    write_text_file(file, out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n",
                    Durability::sync);
    return before;
}

void remove_saved_policy(std::string_view name) {
    const fs::path file = saved_policy_file(name);
    const bool is_one = fault_of_name(name).empty() && !file.empty() && is_saved(file);
    if (!is_one)
        fail(ErrorCode::wrong_use, "there is no saved policy '{}'; saved: {}", shown_text(name),
             fmt::join(saved_names(), " "));
    std::error_code error;
    if (!fs::remove(file, error) && error)
        fail(ErrorCode::io, "cannot remove {}: {}", file.string(), error.message());
}

std::string with_saved_policy(std::string_view lane_spec) {
    const std::size_t equals = lane_spec.find('=');
    const bool has_name = equals < lane_spec.find(':');
    const std::string_view spec = has_name ? lane_spec.substr(equals + 1) : lane_spec;
    const std::size_t colon = spec.find(':');
    const std::string_view word = spec_text::trimmed({spec.substr(0, colon), 0}).text;
    const std::optional<SavedPolicy> saved = policy_of_word(word);
    if (!saved) {
        refuse_near_name(word);
        return std::string(lane_spec);
    }
    const bool has_items = colon != std::string_view::npos;
    const std::string_view items = has_items ? spec.substr(colon + 1) : std::string_view();
    const std::string text =
        has_items ? changed_spec_text(parse_stored_lane_spec(saved->spec), items) : saved->spec;
    const std::string own_name = has_items ? name_with_items(saved->name, items) : saved->name;
    return fmt::format("{}={}", has_name ? lane_spec.substr(0, equals) : std::string_view(own_name), text);
}

std::string command_with_saved_policy(std::string_view command) {
    const std::size_t blank = std::min(command.find(' '), command.size());
    const std::string_view verb = command.substr(0, blank);
    std::size_t at = command.find_first_not_of(' ', blank);
    if (verb == "lane" || verb == "restore" || verb == "fork")
        at = command.find_first_not_of(' ', std::min(command.find(' ', at), command.size()));
    else if (verb != "add")
        return std::string(command);
    if (at == std::string_view::npos) return std::string(command);
    return fmt::format("{}{}", command.substr(0, at), with_saved_policy(command.substr(at)));
}

}  // namespace keyhole
