#include "app/cli/completion.h"

#include "app/base/assets.h"
#include "app/base/saved_policies.h"
#include "app/cli/commands.h"
#include "app/cli/help_form.h"
#include "app/cli/output.h"
#include "app/lessons/lesson_list.h"
#include "app/manual/page.h"
#include "app/models/catalog.h"
#include "app/papers/figure.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

namespace {

using Words = std::vector<std::string>;

/// What a value can be. `words` come first; then what the kind adds.
struct Value {
    enum class Kind { words, file, folder, model, lane } kind = Kind::words;
    Words words;
    bool is_free() const { return kind == Kind::words && words.empty(); }
};

struct OptionRow {
    Words names;  ///< with their dashes; none: an argument
    std::string argument, help;
    std::optional<Value> value;  ///< nullopt: a flag
};

struct CommandRow {
    std::string name, help;
    std::vector<OptionRow> options;
};

// --- the tables --------------------------------------------------------------------------------------------

std::vector<CliCommand> commands_of(const CliCommand& program) {
    std::vector<CliCommand> all = program.commands();
    std::erase_if(all, [](const CliCommand& one) { return one.group().empty(); });
    return all;
}

Words catalog_names() {
    Words names;
    for (const CatalogModel& model : own_catalog()) names.push_back(model.name);
    return names;
}

/// Returns the words of an argument or option that is a name of something that Keyhole has.
Words names_for(const CliCommand& program, std::string_view command, std::string_view word) {
    Words names;
    if (command == "get" && word == "NAME") return catalog_names();
    if (command == "help" && word == "PAGE") {
        names = manual_page_names(find_assets() / "manual");
        for (const CliCommand& one : commands_of(program)) names.push_back(one.name());
    }
    if (word == "--remove-policy")
        for (const ListedPolicy& saved : list_saved_policies())
            if (saved.fault.empty()) names.push_back(saved.policy.name);
    if (command == "figure" && word == "NAME")
        for (const Figure& figure : figures()) names.emplace_back(figure.name);
    if (word == "--lesson" || (command == "lesson" && word == "NAME"))
        for (const ListedLesson& lesson : list_all_lessons())
            if (!lesson.own) names.push_back(lesson.name);
    return names;
}

Value value_of(const CliCommand& program, const CliCommand& command, const CliOption& option,
               const std::string& name) {
    const std::string word = value_word(option);
    Value value;
    if (word == "FILE" || name == "FILE" || name == "HANDIN") value.kind = Value::Kind::file;
    if (word == "DIR" || name == "DIR") value.kind = Value::Kind::folder;
    if (word == "MODEL" || name == "MODEL") value.kind = Value::Kind::model;
    if (word == "LANE") value.kind = Value::Kind::lane;
    value.words = names_for(program, command.name(), name);
    // "auto|cpu", but not "N|N..N".
    const bool is_choice =
        word.find('|') != std::string::npos && word.find_first_of(".= ") == std::string::npos;
    for (std::size_t begin = 0; is_choice && begin < word.size();) {
        const std::size_t end = std::min(word.find('|', begin), word.size());
        value.words.push_back(word.substr(begin, end - begin));
        begin = end + 1;
    }
    return value;
}

std::vector<CommandRow> rows_of(const CliCommand& program) {
    std::vector<CommandRow> rows;
    for (const CliCommand& command : commands_of(program)) {
        CommandRow row{command.name(), command.help(), {}};
        for (const CliOption& option : command.options()) {
            if (option.group().empty()) continue;
            OptionRow one;
            for (const std::string& name : option.long_names()) one.names.push_back("--" + name);
            for (const std::string& name : option.short_names()) one.names.push_back("-" + name);
            if (one.names.empty()) one.argument = option.argument_name();
            one.help = option.help();
            if (option.most_values() > 0)
                one.value =
                    value_of(program, command, option, one.names.empty() ? one.argument : one.names.front());
            row.options.push_back(std::move(one));
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

/// The words of a lane: presets, keys such as `budget=`, and settings such as `scope=head`.
struct LaneVocabulary {
    Words presets, keys, settings;
};

LaneVocabulary lane_words() {
    LaneVocabulary words;
    for (const PresetRow& preset : presets()) words.presets.emplace_back(preset.name);
    for (const ListedPolicy& saved : list_saved_policies())
        if (saved.fault.empty()) words.presets.push_back(saved.policy.name);
    for (const LaneOption& key : lane_keys()) {
        words.keys.push_back(fmt::format("{}=", key.name));
        for (const OptionWord& word : option_words(key))
            words.settings.push_back(fmt::format("{}={}", key.name, word.text));
    }
    return words;
}

std::string head_of(std::string_view shell) {
    return fmt::format("# Completion of keyhole for {0}, made by `keyhole completion {0}`.\n", shell);
}

/// Returns the text in single quotes, for a shell. fish: it has another way to write a quote in them.
std::string in_quotes(std::string_view text, bool fish = false) {
    std::string out = "'";
    for (const char c : text) {
        if (c == '\'')
            out += fish ? "\\'" : "'\\''";
        else if (fish && c == '\\')
            out += "\\\\";
        else
            out += c;
    }
    return out + "'";
}

// --- bash --------------------------------------------------------------------------------------------------

std::string_view bash_kind(Value::Kind kind) {
    switch (kind) {
        case Value::Kind::file:
            return "@file";
        case Value::Kind::folder:
            return "@folder";
        case Value::Kind::model:
            return "@model";
        case Value::Kind::lane:
            return "@lane";
        case Value::Kind::words:
            break;
    }
    return "";
}

constexpr std::string_view kBash = R"(
# Prints what completes the lane $1.
_keyhole_lane() {
    local last=${1##*[:,]} list=$_keyhole_keys
    if [[ $1 != *:* ]]; then
        compgen -W "$_keyhole_presets" -- "$1"
        return
    fi
    [[ $last != *=* ]] || list=$_keyhole_settings
    compgen -P "${1%"$last"}" -W "$list" -- "$last"
}

# Prints what completes the value $1: one of the words $2, or of what an @word there stands for.
_keyhole_value() {
    local word plain=
    for word in $2; do
        case $word in
            @file) compopt -o filenames; compgen -f -- "$1" ;;
            @folder) compopt -o filenames; compgen -d -- "$1" ;;
            @model) compopt -o filenames; compgen -W "$_keyhole_models" -- "$1"; compgen -f -- "$1" ;;
            @lane) _keyhole_lane "$1" ;;
            *) plain+=" $word" ;;
        esac
    done
    compgen -W "$plain" -- "$1"
}

_keyhole() {
    local typed=${COMP_LINE:0:COMP_POINT} command=gui before words cut
    read -ra words <<<"$typed"
    typed=${typed##*[[:space:]]}
    [[ -n $typed ]] || words+=("")
    before=${words[${#words[@]} - 2]}
    if ((${#words[@]} > 2)) && [[ -n ${_keyhole_options[${words[1]}]-} ]]; then command=${words[1]}; fi
    if [[ $typed == --*=* ]]; then before=${typed%%=*} typed=${typed#*=}; fi
    if [[ $before == -* && -n ${_keyhole_values[$command $before]+known} ]]; then
        mapfile -t COMPREPLY < <(_keyhole_value "$typed" "${_keyhole_values[$command $before]}")
        [[ ${_keyhole_values[$command $before]} != *@[fm]* ]] || compopt -o filenames
    elif [[ $typed == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${_keyhole_options[$command]}" -- "$typed")
    elif ((${#words[@]} == 2)); then
        mapfile -t COMPREPLY < <(compgen -W "${!_keyhole_options[*]}" -- "$typed"
            compgen -f -X '!*.keyhole' -- "$typed")
    else
        mapfile -t COMPREPLY < <(_keyhole_value "$typed" "${_keyhole_values[$command]-}")
        [[ ${_keyhole_values[$command]-} != *@[fm]* ]] || compopt -o filenames
    fi
    # bash replaces only what follows the last = or :.
    cut=${typed%"${typed##*[=:]}"}
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
}
complete -F _keyhole keyhole
)";

std::string bash_text(const std::vector<CommandRow>& rows) {
    std::string text = head_of("bash");
    const LaneVocabulary lane = lane_words();
    text +=
        fmt::format("_keyhole_models={}\n", in_quotes(fmt::format("{}", fmt::join(catalog_names(), " "))));
    text += fmt::format("_keyhole_presets={}\n", in_quotes(fmt::format("{}", fmt::join(lane.presets, " "))));
    text += fmt::format("_keyhole_keys={}\n", in_quotes(fmt::format("{}", fmt::join(lane.keys, " "))));
    text +=
        fmt::format("_keyhole_settings={}\n", in_quotes(fmt::format("{}", fmt::join(lane.settings, " "))));
    text += "declare -gA _keyhole_options=(\n";
    for (const CommandRow& row : rows) {
        Words names;
        for (const OptionRow& option : row.options)
            names.insert(names.end(), option.names.begin(), option.names.end());
        text += fmt::format("    [{}]={}\n", row.name, in_quotes(fmt::format("{}", fmt::join(names, " "))));
    }
    text += ")\n# By command and option; by command: its argument.\ndeclare -gA _keyhole_values=(\n";
    for (const CommandRow& row : rows) {
        std::string arguments;
        for (const OptionRow& option : row.options) {
            if (!option.value) continue;
            const std::string words =
                fmt::format("{}{}{}", fmt::join(option.value->words, " "),
                            option.value->words.empty() ? "" : " ", bash_kind(option.value->kind));
            for (const std::string& name : option.names)
                text += fmt::format("    [{}]={}\n", in_quotes(row.name + " " + name), in_quotes(words));
            if (option.names.empty()) arguments += words + " ";
        }
        if (arguments.find_first_not_of(' ') != std::string::npos)
            text += fmt::format("    [{}]={}\n", row.name, in_quotes(arguments));
    }
    return text + ")\n" + std::string(kBash);
}

// --- zsh ---------------------------------------------------------------------------------------------------

constexpr std::string_view kZshLane = R"(
_keyhole_lane() {
    if [[ $PREFIX != *:* ]]; then
        compadd -S '' -- $presets
        return
    fi
    compset -P '*[:,]'
    if [[ $PREFIX == *=* ]]; then compadd -S '' -- $settings; else compadd -S '' -- $keys; fi
}
_keyhole_model() {
    compadd -- $models
    _files
}
)";

/// Returns the help for _arguments: no bracket or colon may end it.
std::string zsh_help(std::string_view help) {
    std::string out;
    for (const char c : help) {
        if (c == '[' || c == ']' || c == '\\' || c == ':') out += '\\';
        out += c;
    }
    return out;
}

std::string zsh_action(const Value& value) {
    switch (value.kind) {
        case Value::Kind::file:
            return "_files";
        case Value::Kind::folder:
            return "_files -/";
        case Value::Kind::model:
            return "_keyhole_model";
        case Value::Kind::lane:
            return "_keyhole_lane";
        case Value::Kind::words:
            break;
    }
    return value.words.empty() ? " " : fmt::format("({})", fmt::join(value.words, " "));
}

std::string zsh_text(const std::vector<CommandRow>& rows) {
    std::string text = "#compdef keyhole\n" + head_of("zsh") + std::string(kZshLane);
    const LaneVocabulary lane = lane_words();
    text += "_keyhole() {\n    local -a models presets keys settings commands\n";
    text += fmt::format("    models=({})\n    presets=({})\n", fmt::join(catalog_names(), " "),
                        fmt::join(lane.presets, " "));
    text += "    keys=(";
    for (const std::string& key : lane.keys) text += in_quotes(key) + " ";
    text += ")\n    settings=(";
    for (const std::string& setting : lane.settings) text += in_quotes(setting) + " ";
    text += ")\n    commands=(\n";
    for (const CommandRow& row : rows)
        text += fmt::format("        {}\n", in_quotes(row.name + ":" + row.help));
    text +=
        "    )\n"
        "    if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n"
        "        _describe command commands\n"
        "        _files -g '*.keyhole'\n"
        "        return\n"
        "    fi\n"
        "    local command=$words[2]\n"
        "    if [[ $command == -* ]]; then\n"
        "        command=gui\n"
        "    else\n"
        "        shift words\n"
        "        ((CURRENT--))\n"
        "    fi\n"
        "    case $command in\n";
    for (const CommandRow& row : rows) {
        text += fmt::format("        {})\n            _arguments", row.name);
        for (const OptionRow& option : row.options) {
            const std::string action = option.value ? zsh_action(*option.value) : "";
            for (const std::string& name : option.names) {
                const std::string_view joint = !option.value ? "" : name.starts_with("--") ? "=" : "+";
                const std::string value = option.value ? fmt::format(":value:{}", action) : "";
                text += fmt::format(" \\\n                {}",
                                    in_quotes(fmt::format("{}{}{}[{}]{}", option.value ? "*" : "", name,
                                                          joint, zsh_help(option.help), value)));
            }
            if (option.names.empty())
                text += fmt::format(" \\\n                {}",
                                    in_quotes(fmt::format("*:{}:{}", option.argument, action)));
        }
        text += "\n            ;;\n";
    }
    return text + "    esac\n}\n_keyhole \"$@\"\n";
}

// --- fish --------------------------------------------------------------------------------------------------

constexpr std::string_view kFishLane = R"(function __keyhole_lanes
    set -l typed (string replace -r '^--lane=' '' -- (commandline -ct))
    if not string match -q '*:*' -- $typed
        printf '%s\n' $__keyhole_presets
        return
    end
    set -l head (string replace -r '[^:,]*$' '' -- $typed)
    if string match -q '*=*' -- (string replace -r '.*[:,]' '' -- $typed)
        printf '%s\n' $head$__keyhole_settings
    else
        printf '%s\n' $head$__keyhole_keys
    end
end
)";

/// Returns the part of a `complete` line for a value.
std::string fish_value(const Value& value) {
    std::string words = fmt::format("{}", fmt::join(value.words, " "));
    if (value.kind == Value::Kind::model) words = "$__keyhole_models";
    if (value.kind == Value::Kind::lane) words = "(__keyhole_lanes)";
    if (value.kind == Value::Kind::folder) words = "(__fish_complete_directories)";
    const bool has_files = value.kind == Value::Kind::file || value.kind == Value::Kind::model;
    return fmt::format("{}{}", has_files ? " -r -F" : " -x",
                       words.empty() ? "" : fmt::format(" -a {}", in_quotes(words, true)));
}

std::string fish_text(const std::vector<CommandRow>& rows) {
    std::string text = head_of("fish");
    const LaneVocabulary lane = lane_words();
    text +=
        fmt::format("set -g __keyhole_models {}\nset -g __keyhole_presets {}\nset -g __keyhole_keys {}\n",
                    fmt::join(catalog_names(), " "), fmt::join(lane.presets, " "), fmt::join(lane.keys, " "));
    text += fmt::format("set -g __keyhole_settings {}\n{}", fmt::join(lane.settings, " "), kFishLane);
    for (const CommandRow& row : rows)
        text += fmt::format("complete -c keyhole -n __fish_use_subcommand -f -a {} -d {}\n", row.name,
                            in_quotes(row.help, true));
    for (const CommandRow& row : rows)
        for (const OptionRow& option : row.options) {
            std::string line =
                fmt::format("complete -c keyhole -n '__fish_seen_subcommand_from {}'", row.name);
            for (const std::string& name : option.names)
                line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
            if (option.names.empty() && option.value->is_free()) continue;
            line += !option.value          ? " -f"
                    : option.names.empty() ? " -f" + fish_value(*option.value).substr(3)
                                           : fish_value(*option.value);
            text += fmt::format("{} -d {}\n", line, in_quotes(option.help, true));
        }
    return text;
}

}  // namespace

std::string completion_text(const CliCommand& program, std::string_view shell) {
    const std::vector<CommandRow> rows = rows_of(program);
    return shell == "bash" ? bash_text(rows) : shell == "zsh" ? zsh_text(rows) : fish_text(rows);
}

void add_completion_command(const CliCommand& program) {
    const auto shell = std::make_shared<std::string>();
    const CliCommand command =
        program.add_command("completion", "print what a shell needs to complete commands, options and lanes");
    command.add_option("SHELL", *shell, "whose completion to print")
        .required()
        .one_of({"bash", "zsh", "fish"});
    command.does([program, shell] { write_output(completion_text(program, *shell)); });
}

}  // namespace keyhole
