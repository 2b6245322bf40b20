#include "app/cli/help_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

namespace keyhole {

namespace {

constexpr std::size_t kColumn = 30, kWidth = 100;

struct OptionForm {
    std::string_view name, value, group;
};

constexpr std::string_view kModel = "Model", kPrompt = "Prompt", kLanes = "Lanes", kSampling = "Sampling",
                           kQuestions = "Questions", kData = "Your own questions", kGrid = "Grid",
                           kSpeed = "Speed", kHandIns = "Hand-ins", kExports = "Exports",
                           kPictures = "Pictures", kOutput = "Output";

/// In the order of the groups. An option that is not listed keeps what CLI11 shows, in the group "Options".
constexpr std::array kForms = {
    OptionForm{"model", "MODEL", kModel},
    OptionForm{"yes", "", kModel},
    OptionForm{"backend", "", kModel},
    OptionForm{"threads", "N", kModel},
    OptionForm{"device", "N", kModel},
    OptionForm{"precision", "", kModel},
    OptionForm{"shape", "NAME", kModel},
    OptionForm{"dtype", "", kModel},
    OptionForm{"prompt", "TEXT", kPrompt},
    OptionForm{"prompt-file", "FILE", kPrompt},
    OptionForm{"chat", "", kPrompt},
    OptionForm{"system", "TEXT", kPrompt},
    OptionForm{"lane", "LANE", kLanes},
    OptionForm{"follow", "", kLanes},
    OptionForm{"free", "", kLanes},
    OptionForm{"script", "FILE", kLanes},
    OptionForm{"tokens", "N", kSampling},
    OptionForm{"ignore-eos", "", kSampling},
    OptionForm{"temperature", "X", kSampling},
    OptionForm{"top-k", "K", kSampling},
    OptionForm{"top-p", "P", kSampling},
    OptionForm{"repetition-penalty", "X", kSampling},
    OptionForm{"no-repeat-ngram", "N", kSampling},
    OptionForm{"min-tokens", "N", kSampling},
    OptionForm{"beams", "N", kSampling},
    OptionForm{"beam-scores", "", kSampling},
    OptionForm{"length-penalty", "X", kSampling},
    OptionForm{"early-stopping", "", kSampling},
    OptionForm{"task", "TASK,...", kQuestions},
    OptionForm{"text", "FILE", kQuestions},
    OptionForm{"context", "N", kQuestions},
    OptionForm{"prefill", "N", kQuestions},
    OptionForm{"samples", "N", kQuestions},
    OptionForm{"distance", "N|N..N", kQuestions},
    OptionForm{"suite", "", kQuestions},
    OptionForm{"ask", "", kQuestions},
    OptionForm{"ask-when", "", kQuestions},
    OptionForm{"seed", "N", kQuestions},
    OptionForm{"passages", "FILE", kQuestions},
    OptionForm{"data", "FILE", kData},
    OptionForm{"few-shot", "FILE", kData},
    OptionForm{"shots", "K", kData},
    OptionForm{"answer-tokens", "N", kData},
    OptionForm{"until", "", kData},
    OptionForm{"cut", "", kData},
    OptionForm{"stems", "", kData},
    OptionForm{"answers", "FILE", kData},
    OptionForm{"shard", "I/N", kQuestions},
    OptionForm{"vary", "KEY=VALUES", kGrid},
    OptionForm{"map", "", kGrid},
    OptionForm{"lengths", "N,...", kGrid},
    OptionForm{"depths", "N,...", kGrid},
    OptionForm{"paper", "NAME", kSpeed},
    OptionForm{"scale", "N", kSpeed},
    OptionForm{"scale-batch", "N", kSpeed},
    OptionForm{"batch", "N", kSpeed},
    OptionForm{"rounds", "N", kSpeed},
    OptionForm{"instrument", "", kSpeed},
    OptionForm{"scores", "", kSpeed},
    OptionForm{"parts", "", kSpeed},
    OptionForm{"cublas-from", "N", kSpeed},
    OptionForm{"executor", "", kSpeed},
    OptionForm{"new", "NAME", kHandIns},
    OptionForm{"handout", "FILE", kHandIns},
    OptionForm{"salt", "TEXT", kHandIns},
    OptionForm{"measured", "", kHandIns},
    OptionForm{"from", "DIR", kOutput},
    OptionForm{"of-lane", "N", kOutput},
    OptionForm{"export", "LIST", kExports},
    OptionForm{"layers", "N,...", kExports},
    OptionForm{"rows", "", kExports},
    OptionForm{"heads", "N,...", kExports},
    OptionForm{"last-rows", "N", kExports},
    OptionForm{"row", "N", kPictures},
    OptionForm{"focus", "N", kPictures},
    OptionForm{"look", "LIST", kPictures},
    OptionForm{"width", "N", kPictures},
    OptionForm{"height", "N", kPictures},
    OptionForm{"font-size", "POINTS", kPictures},
    OptionForm{"bare", "", kPictures},
    OptionForm{"watch", "WORDS", kPictures},
    OptionForm{"format", "LIST", kPictures},
    OptionForm{"right", "TEXT", kPictures},
    OptionForm{"dark", "", kPictures},
    OptionForm{"out", "DIR", kOutput},
    OptionForm{"save", "FILE", kOutput},
    OptionForm{"save-policy", "NAME=LANE", kOutput},
    OptionForm{"about", "TEXT", kOutput},
    OptionForm{"remove-policy", "NAME", kOutput},
    OptionForm{"against", "LANE", kOutput},
    OptionForm{"sort", "", kOutput},
    OptionForm{"json", "", kOutput},
    OptionForm{"list", "", kOutput},
    OptionForm{"man", "", kOutput},
    OptionForm{"print", "FILE", kOutput},
    OptionForm{"check", "", kOutput},
    OptionForm{"kv", "SHARING", kModel},
    OptionForm{"merge", "", kModel},
    OptionForm{"compensate", "", kModel},
    OptionForm{"open", "FILE", kOutput},
    OptionForm{"lesson", "NAME", kOutput},
    OptionForm{"settings", "FILE", kOutput},
    OptionForm{"report", "FILE", kOutput},
    OptionForm{"keep-in", "DIR", kOutput},
    OptionForm{"size", "WxH", kOutput},
};

/// Groups of options that have another meaning in one command.
struct Exception {
    std::string_view command, name, value, group;
};
constexpr std::array kExceptions = {
    Exception{"decode", "seed", "N", kSampling}, Exception{"decode", "dtype", "", kExports},
    Exception{"replay", "dtype", "", kExports},  Exception{"bench", "prompt", "", kSpeed},
    Exception{"bench", "layers", "N", kModel},   Exception{"bench", "text", "FILE", kSpeed},
    Exception{"bench", "tokens", "N", kSpeed},   Exception{"bench", "context", "N", kSpeed},
    Exception{"info", "context", "N", kModel},   Exception{"info", "batch", "N", kModel},
    Exception{"info", "options", "", kOutput},   Exception{"gui", "script", "FILE", kOutput},
    Exception{"check", "format", "", kOutput},
};

struct Example {
    std::string_view command, line;
};
constexpr std::array kExamples = {
    Example{"", "keyhole                                              opens the window"},
    Example{"", "keyhole decode \"Once upon a time\" --lane full --lane h2o:budget=16"},
    Example{"", "keyhole lesson 9"},
    Example{"", "keyhole help first-steps"},
    Example{"gui", "keyhole"},
    Example{"gui", "keyhole run.keyhole"},
    Example{"gui", "keyhole --model smollm2-135m --lane full --lane tova:budget=256"},
    Example{"decode", "keyhole decode \"Once upon a time\" -n 20"},
    Example{
        "decode",
        "keyhole decode -f assets/prompts/garden-gate.txt --lane full --lane h2o:budget=64 --follow -n 12"},
    Example{"decode", "echo \"The tortoise said\" | keyhole decode - --lane window:budget=32 --json"},
    Example{"replay", "keyhole replay run.keyhole"},
    Example{"replay", "keyhole replay run.keyhole --out out --export run,answers"},
    Example{"eval", "keyhole eval --task needle --samples 20 --lane full --lane tova:budget=64"},
    Example{"eval",
            "keyhole eval --task needle --samples 20 --context 300 --ask-when both --lane full --lane "
            "rows=snapkv:budget=64"},
    Example{
        "eval",
        "keyhole eval --task needle --samples 10 --context 300 --lane full --lane h2o:budget=64 --by head"},
    Example{"eval",
            "keyhole eval --text assets/tasks/narrative.txt --samples 8 --lane full --lane h2o:budget=64"},
    Example{
        "sweep",
        "keyhole sweep --task needle --samples 10 --lane full --lane h2o --vary budget=32..128*2 --out out"},
    Example{
        "sweep",
        "keyhole sweep --task needle --map --samples 2 --lengths 128,256 --lane tova:budget=64 --out out"},
    Example{"presets", "keyhole presets"},
    Example{"presets", "keyhole presets --prompt-file assets/prompts/story.txt --budget 32 --head L3.H2"},
    Example{"presets", "keyhole presets --save-policy mine=h2o:budget=64,sinks=8 --about Sinks"},
    Example{"attribute",
            "keyhole attribute --task needle --samples 4 --context 300 --lane h2o:budget=64 --out out"},
    Example{"attribute",
            "keyhole attribute --task needle --samples 1 --context 200 --by token --lane h2o:budget=64 --out "
            "out"},
    Example{"attribute",
            "keyhole attribute --task needle --samples 8 --context 300 --lane h2o:budget=64 --budget 64 "
            "--held-out 20 --out out"},
    Example{"search",
            "keyhole search --task needle --samples 8 --context 300 --lane h2o:budget=64 --vary alpha=0..1 "
            "--vary recent=4..48 --tries 16 --out out"},
    Example{
        "search",
        "keyhole search --task needle --samples 8 --context 300 --lane 'key:budget=64,choose=(s/(age+{a}))' "
        "--vary a=1..64 --tries 16 --out out"},
    Example{"merge", "keyhole merge s1 s2 --out whole"},
    Example{"merge", "keyhole merge shard-* --out whole"},
    Example{"figure", "keyhole figure --list"},
    Example{"figure", "keyhole figure a2sf-1 --out out"},
    Example{"bench", "keyhole bench --context 512 --tokens 64 --lane full --lane h2o:budget=128"},
    Example{"bench", "keyhole bench --prompt --context 512 --lane full --lane tova:budget=128"},
    Example{"info", "keyhole info smollm2-135m"},
    Example{"info", "keyhole info --options"},
    Example{"convert", "keyhole convert --kv mqa --out mqa-model"},
    Example{"convert", "keyhole convert --model HuggingFaceTB/SmolLM2-135M --kv gqa:1 --out smollm2-gqa1"},
    Example{"get", "keyhole get --list"},
    Example{"get", "keyhole get smollm2-135m"},
    Example{"lesson", "keyhole lesson 9"},
    Example{"lesson", "keyhole lesson lost-needle --print lesson.html"},
    Example{"check", "keyhole check --new \"Ada Lovelace\""},
    Example{"check", "keyhole check ada-lovelace.json"},
    Example{"check", "keyhole check hand-ins --format csv"},
    Example{"selftest", "keyhole selftest"},
    Example{"selftest", "keyhole selftest --backend cpu --json"},
    Example{"completion", "source <(keyhole completion bash)"},
    Example{"completion", "keyhole completion fish"},
    Example{"help", "keyhole help first-steps"},
    Example{"help", "keyhole help policies 2.11"},
};

/// Returns the name without dashes: "prompt-file".
std::string plain_name(const CliOption& option) {
    return option.long_names().empty() ? option.name() : option.long_names().front();
}

const OptionForm* form_of(std::string_view name) {
    const auto found =
        std::find_if(kForms.begin(), kForms.end(), [&](const OptionForm& form) { return form.name == name; });
    return found == kForms.end() ? nullptr : &*found;
}

/// Splits what CLI11 knows of a value, such as "UINT:1 to 16" or "TEXT:{auto,cpu}".
std::pair<std::string, std::string> type_and_range(const CliOption& option) {
    const std::string type = option.type_text();
    const std::size_t colon = std::min(type.find(':'), type.size());
    return {type.substr(0, colon), type.substr(std::min(colon + 1, type.size()))};
}

bool is_number(const std::string& type) {
    return type == "INT" || type == "UINT" || type == "FLOAT";
}

/// Returns the groups of a command's options, in the order of kForms.
std::vector<std::string> groups_in_order(const CliCommand& command) {
    std::vector<std::string> there = command.groups(), ordered;
    const auto take = [&](std::string_view group) {
        const auto found = std::find(there.begin(), there.end(), group);
        if (found == there.end() || group.empty()) return;
        ordered.push_back(*found);
        there.erase(found);
    };
    for (const OptionForm& form : kForms) take(form.group);
    while (!there.empty()) {
        const std::string group = there.front();
        if (group.empty())
            there.erase(there.begin());
        else
            take(group);
    }
    return ordered;
}

/// Returns an option's help with its range, its default and whether it is required.
std::string described(CliOption option) {
    std::string text = option.help();
    const auto [type, range] = type_and_range(option);
    std::string more;
    if (is_number(type) && range.find(" to ") != std::string::npos) more = range;
    const bool says_default = text.find("(default: ") != std::string::npos;
    if (const std::string& standard = option.default_text(); !standard.empty() && !says_default)
        more += fmt::format("{}default: {}", more.empty() ? "" : "; ", standard);
    if (option.is_required()) more += fmt::format("{}required", more.empty() ? "" : "; ");
    if (more.empty()) return text;
    if (!says_default || !text.ends_with(')')) return fmt::format("{} ({})", text, more);
    text.pop_back();
    return fmt::format("{}; {})", text, more);
}

/// A name and its text, whose lines stand below one another.
std::string in_columns(const std::string& name, const std::string& text) {
    std::string out = "  " + name;
    std::size_t at = out.size();
    if (at + 2 > kColumn) {
        out += "\n";
        at = 0;
    }
    const auto pad = [&] {
        out += std::string(kColumn - at, ' ');
        at = kColumn;
    };
    pad();
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find(' ', begin), text.size());
        if (at > kColumn && at + 1 + (end - begin) > kWidth) {
            out += "\n";
            at = 0;
            pad();
        }
        if (at > kColumn) {
            out += ' ';
            ++at;
        }
        out += text.substr(begin, end - begin);
        at += end - begin;
        begin = end + 1;
    }
    return out + "\n";
}

class Form : public HelpForm {
  public:
    std::string option_row(CliOption option) const override {
        const std::string value = option.is_argument() ? "" : value_word(option);
        return in_columns(option.names_text() + (value.empty() ? "" : " " + value), described(option));
    }
    std::string command_row(CliCommand command) const override {
        return in_columns(command.name(), command.help());
    }
    std::vector<std::string> groups(CliCommand command) const override { return groups_in_order(command); }
};

std::string examples_text(std::string_view command) {
    std::string text = "Examples:";
    for (const std::string_view line : help_examples(command)) text += fmt::format("\n  {}", line);
    return text;
}

void set_group(const CliCommand& command, CliOption option) {
    if (option.is_argument() || option.group() != "Options") return;
    const std::string name = plain_name(option);
    if (name == "help") {
        option.set_group(kOutput);
        return;
    }
    for (const Exception& one : kExceptions)
        if (one.command == command.name() && one.name == name) {
            option.set_group(one.group);
            return;
        }
    if (const OptionForm* form = form_of(name)) option.set_group(form->group);
}

}  // namespace

std::string value_word(const CliOption& option) {
    if (option.most_values() == 0) return "";  // a flag
    const auto [type, range] = type_and_range(option);
    if (range.starts_with('{')) {
        std::string words = range.substr(1, range.size() - 2);
        std::replace(words.begin(), words.end(), ',', '|');
        return words;
    }
    if (const OptionForm* form = form_of(plain_name(option)); form != nullptr && !form->value.empty())
        // An option of one number has no list, though that of its name in another command has.
        return is_number(type) && option.most_values() == 1 && form->value == "N,..."
                   ? "N"
                   : std::string(form->value);
    return is_number(type) ? "N" : "TEXT";
}

std::vector<std::string_view> help_examples(std::string_view command) {
    std::vector<std::string_view> lines;
    for (const Example& example : kExamples)
        if (example.command == command) lines.push_back(example.line);
    return lines;
}

void give_help_its_form(const CliCommand& program) {
    static const Form form;
    program.set_form(form, examples_text(""));
    program.help_option().set_help("print this help");
    if (const CliOption version = program.option("--version")) version.set_help("print the version");
    for (const CliCommand& command : program.commands()) {
        command.set_form(form, examples_text(command.name()));
        command.help_option().set_help("print this help");
        command.set_group("Commands");
        for (const CliOption option : command.options()) set_group(command, option);
    }
}

}  // namespace keyhole
