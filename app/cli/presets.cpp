#include "app/base/assets.h"
#include "app/base/saved_policies.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "app/study/keep_presets.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/model_name.h"
#include "engine/base/number.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/preset_table.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <set>

namespace keyhole {

namespace {

struct PresetsOptions {
    RunOptions run;
    std::string prompt_file, head, save;
    std::string save_policy, about, remove_policy;
    int budget = 64;
    bool json = false;
    CliOption budget_option;
    /// Returns whether the pictures are to be made anew.
    bool of_own_run() const {
        return !run.model.empty() || !prompt_file.empty() || !head.empty() || !save.empty() ||
               budget_option.is_given();
    }
};

/// Parses `L3.H2`.
std::pair<int, int> parse_head(std::string_view text) {
    const std::size_t dot = text.find(".H");
    const auto layer = number_from_text<int>(text.substr(std::min<std::size_t>(1, text.size()), dot - 1), 0);
    const auto head =
        dot == std::string_view::npos ? std::nullopt : number_from_text<int>(text.substr(dot + 2), 0);
    if (!text.starts_with('L') || !layer || !head)
        fail(ErrorCode::wrong_use, "--head '{}' is no head; write it as L3.H2", text);
    return {*layer, *head};
}

KeptPictures pictures_of(const PresetsOptions& options) {
    if (!options.of_own_run()) return shipped_kept_pictures();
    std::filesystem::path file = options.prompt_file;
    if (file.empty()) file = find_assets() / "prompts" / "garden-gate.txt";
    std::optional<std::pair<int, int>> head;
    if (!options.head.empty()) head = parse_head(options.head);
    const LoadedModel loaded = load_for_run(options.run);
    return keep_by_presets(loaded.model, *loaded.backend, read_prompt_file(file), options.budget,
                           {model_name(loaded.model->path()), file.filename().string()}, head);
}

/// Returns the kept tokens as a bar, one sign for each of equal pieces of the prompt.
std::string bar_of(const KeptPictures& pictures, const KeptPicture& kept) {
    static constexpr std::array<std::string_view, 5> kSigns = {"·", "░", "▒", "▓", "█"};
    constexpr int kBarWidth = 84;
    std::string bar;
    for (const float share :
         kept_shares(pictures, kept, std::min(kBarWidth, static_cast<int>(pictures.tokens.size()))))
        bar += kSigns[to_index(static_cast<int>(std::ceil(share * 4 - 1e-4f)))];
    return bar;
}

std::string counts_of(const KeptPictures& pictures, const KeptPicture& kept) {
    const std::set<int> stored(kept.positions.begin(), kept.positions.end());
    const auto n = std::ranges::count_if(pictures.watched, [&](int p) { return stored.contains(p); });
    std::string text = fmt::format("{} of {} tokens", stored.size(), pictures.tokens.size());
    if (!pictures.watched.empty())
        text += fmt::format(", {} of the {} that the answer needs", n, pictures.watched.size());
    return text;
}

void print_groups(const KeptPictures& pictures) {
    print_out(
        "What each keeps of {}, or reads in the first step: {} tokens of its {}, in layer {}, head {} of "
        "{}.\n",
        pictures.prompt, pictures.budget, pictures.tokens.size(), pictures.layer, pictures.head,
        pictures.model);
    for (const PresetGroup& group : preset_groups()) {
        print_out("\n{}: {}\n", group.name, group.help);
        for (const PresetRow* row : presets_that_look_at(group.looks_at)) {
            print_out("\n  {:<11}{}\n", row->name, row->help);
            const KeptPicture* kept = pictures.find(row->name);
            if (kept == nullptr) continue;
            if (!kept->why_not.empty())
                print_out("  {:<11}no picture: {}\n", "", kept->why_not);
            else
                print_out("  {:<11}{}\n  {:<11}{}\n", "", bar_of(pictures, *kept), "",
                          counts_of(pictures, *kept));
        }
    }
}

void print_saved() {
    const std::vector<ListedPolicy> all = list_saved_policies();
    if (all.empty()) return;
    print_out("\nsaved: yours, in {}\n", saved_policies_folder().string());
    for (const auto& [file, policy, fault] : all)
        print_out("\n  {:<11} {}{}\n", policy.name, fault.empty() ? policy.spec : fault,
                  policy.about.empty() ? "" : fmt::format("\n  {:<11} {}", "", policy.about));
}

nlohmann::json saved_as_json() {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [file, policy, fault] : list_saved_policies()) {
        nlohmann::json one = {{"name", policy.name}, {"file", file.string()}};
        if (fault.empty())
            one.update({{"spec", policy.spec}, {"about", policy.about}, {"version", policy.version}});
        else
            one["fault"] = fault;
        all.push_back(std::move(one));
    }
    return all;
}

void print_groups_as_json(const KeptPictures& pictures) {
    nlohmann::json groups = nlohmann::json::array();
    for (const PresetGroup& group : preset_groups()) {
        nlohmann::json rows = nlohmann::json::array();
        for (const PresetRow* row : presets_that_look_at(group.looks_at))
            rows.push_back({{"name", row->name},
                            {"title", row->title},
                            {"help", row->help},
                            {"spec", format_lane_spec({preset_params(row->preset)})}});
        groups.push_back({{"looks_at", group.name}, {"help", group.help}, {"presets", std::move(rows)}});
    }
    const nlohmann::json json = {{"version", program_version()},
                                 {"groups", groups},
                                 {"saved", saved_as_json()},
                                 {"kept", to_json(pictures)}};
    print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// text: NAME=LANE.
void save_as_typed(const std::string& text, const std::string& about) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos)
        fail(ErrorCode::wrong_use, "--save-policy '{}': NAME=LANE is needed, mine=h2o:budget=64",
             shown_text(text));
    const std::string name = text.substr(0, equals);
    const std::string before =
        save_policy({name, with_saved_policy(text.substr(equals + 1)), about, program_version()});
    print_out("saved {} as {}{}\n", name, saved_policy_file(name).string(),
              before.empty() ? "" : fmt::format("; before it was {}", before));
}

void run_presets(const PresetsOptions& options) {
    if (!options.remove_policy.empty()) {
        remove_saved_policy(options.remove_policy);
        print_out("removed {}\n", options.remove_policy);
    }
    if (!options.save_policy.empty()) save_as_typed(options.save_policy, options.about);
    if (!options.remove_policy.empty() || !options.save_policy.empty()) return;
    const KeptPictures pictures = pictures_of(options);
    if (!options.save.empty()) {
        // A list in one line is shorter and changes by lines.
        std::string text = to_json(pictures).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        for (std::size_t at = 0; (at = text.find("{\"kept\"", at)) != std::string::npos; at += 2)
            text.insert(at, "\n");
        write_text_file(options.save, text + "\n");
    }
    if (options.json) return print_groups_as_json(pictures);
    print_groups(pictures);
    print_saved();
}

}  // namespace

void add_presets_command(const CliCommand& program) {
    auto options = std::make_shared<PresetsOptions>();
    const CliCommand command = program.add_command(
        "presets", "list the policies by what they look at, with what each keeps of one prompt");
    options->run.add_model(command);
    options->run.add_backend(command);
    options->run.measures = true;
    command
        .add_option(
            "-f,--prompt-file", options->prompt_file,
            "text to read; a text, model, budget or head gives new pictures in place of those that come "
            "with Keyhole")
        .some_path();
    options->budget_option =
        command.add_option("--budget", options->budget, "tokens that a head keeps").within(1, 1 << 14);
    options->budget_option.shows_default();
    command.add_option(
        "--head", options->head,
        "head on show, such as L3.H2 (default: the one that matters most to the prompt's end)");
    command
        .add_option("--save", options->save, "file for the pictures, as assets/policies/kept.json has them")
        .some_path();
    const CliOption save_policy = command.add_option(
        "--save-policy", options->save_policy,
        "save a lane under a name that stands for a preset in every --lane; nothing else is done");
    command.add_option("--about", options->about, "--save-policy: a sentence about it").needs(save_policy);
    command.add_option("--remove-policy", options->remove_policy, "remove a saved policy")
        .excludes(save_policy);
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] { run_presets(*options); });
}

}  // namespace keyhole
