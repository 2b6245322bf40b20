#include "app/cli/typed_arguments.h"

#include "app/base/saved_policies.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace keyhole {

namespace {

struct Word {
    std::string_view typed, here;
};

constexpr std::array kCommandWords = {
    Word{"run", "keyhole decode --model MODEL TEXT"},
    Word{"generate", "keyhole decode TEXT"},
    Word{"complete", "keyhole decode TEXT"},
    Word{"cli", "keyhole decode TEXT"},
    Word{"chat", "keyhole decode --chat TEXT"},
    Word{"pull", "keyhole get NAME"},
    Word{"download", "keyhole get NAME"},
    Word{"install", "keyhole get NAME"},
    Word{"list", "keyhole get --list"},
    Word{"ls", "keyhole get --list"},
    Word{"models", "keyhole get --list"},
    Word{"show", "keyhole info MODEL"},
    Word{"inspect", "keyhole info MODEL"},
    Word{"ps", "keyhole info MODEL"},
    Word{"perplexity", "keyhole eval --text FILE"},
    Word{"ppl", "keyhole eval --text FILE"},
    Word{"benchmark", "keyhole bench"},
    Word{"test", "keyhole selftest"},
    Word{"open", "keyhole gui FILE.keyhole"},
    Word{"window", "keyhole gui"},
    Word{"ui", "keyhole gui"},
    Word{"tutorial", "keyhole lesson"},
    Word{"learn", "keyhole lesson"},
    Word{"manual", "keyhole help"},
    Word{"man", "keyhole help"},
    Word{"paper", "keyhole figure --list"},
    Word{"plot", "keyhole figure --list"},
    Word{"grid", "keyhole sweep"},
    Word{"quantize", "a lane's key kv_dtype=q8"},
};

/// Options of other programs and ours. A value that is given with ours takes the place of the typed one; an
/// empty one here is left out.
struct OptionWord {
    std::string_view typed, here;
    int n_values = 1;
};
constexpr std::array kOptionWords = {
    OptionWord{"--n-predict", "--tokens"},
    OptionWord{"--predict", "--tokens"},
    OptionWord{"--num-predict", "--tokens"},
    OptionWord{"--max-tokens", "--tokens"},
    OptionWord{"--max-new-tokens", "--tokens"},
    OptionWord{"--max-length", "--tokens"},
    OptionWord{"--n-tokens", "--tokens"},
    OptionWord{"--temp", "--temperature"},
    OptionWord{"--repeat-penalty", "--repetition-penalty"},
    OptionWord{"--repeat-last-n", ""},
    OptionWord{"--no-repeat-ngram-size", "--no-repeat-ngram"},
    OptionWord{"--ctx-size", "--context"},
    OptionWord{"--n-ctx", "--context"},
    OptionWord{"--context-length", "--context"},
    OptionWord{"--batch-size", "--batch"},
    OptionWord{"--num-threads", "--threads"},
    OptionWord{"--file", "--prompt-file"},
    OptionWord{"--input", "--prompt-file"},
    OptionWord{"--input-file", "--prompt-file"},
    OptionWord{"--output", "--out"},
    OptionWord{"--output-dir", "--out"},
    OptionWord{"--outdir", "--out"},
    OptionWord{"--model-path", "--model"},
    OptionWord{"--model-name", "--model"},
    OptionWord{"--hf-repo", "--model"},
    OptionWord{"-hf", "--model"},
    OptionWord{"-hfr", "--model"},
    OptionWord{"-ngl", "--backend cuda"},
    OptionWord{"--n-gpu-layers", "--backend cuda"},
    OptionWord{"--gpu-layers", "--backend cuda"},
    OptionWord{"--gpu", "--backend cuda", 0},
    OptionWord{"--cuda", "--backend cuda", 0},
    OptionWord{"--cpu", "--backend cpu", 0},
    OptionWord{"--conversation", "--chat", 0},
    OptionWord{"-cnv", "--chat", 0},
    OptionWord{"--tasks", "--task"},
    OptionWord{"--limit", "--samples"},
    OptionWord{"--n-samples", "--samples"},
    OptionWord{"--num-samples", "--samples"},
    OptionWord{"--num-fewshot", "--shots"},
    OptionWord{"--policies", "--lane"},
    OptionWord{"--verbose", "", 0},
    OptionWord{"--quiet", "", 0},
    OptionWord{"--no-mmap", "", 0},
    OptionWord{"--mlock", "", 0},
    OptionWord{"--no-display-prompt", "", 0},
};

/// Options whose value is the preset of a lane, and those whose value is another key of it than their name.
constexpr std::array kPresetWords = {"--policy",    "--method",       "--eviction",
                                     "--kv-policy", "--cache-policy", "--preset"};
constexpr std::array kKeyWords = {
    Word{"--cache-type-k", "kv_dtype"}, Word{"--cache-type-v", "kv_dtype"},  Word{"-ctk", "kv_dtype"},
    Word{"-ctv", "kv_dtype"},           Word{"--kv-budget", "budget"},       Word{"--cache-budget", "budget"},
    Word{"--cache-size", "budget"},     Word{"--recent-size", "recent"},     Word{"--window-size", "budget"},
    Word{"--n-sinks", "sinks"},         Word{"--forgetting-factor", "alpha"}};

template <class Words>
std::optional<std::string_view> here_for(const Words& words, std::string_view typed) {
    for (const auto& word : words)
        if (word.typed == typed) return word.here;
    return std::nullopt;
}

/// One thing that was typed: an option with its values, or a positional argument.
struct Piece {
    std::string name;  ///< with its dashes; empty: a positional
    std::vector<std::string> values;
    CliOption option = {};  ///< none: unknown
    bool joined = false;    ///< as --name=value
};

bool looks_like_option(std::string_view text) {
    return text.size() > 1 && text[0] == '-' && !(text[1] >= '0' && text[1] <= '9') && text[1] != '.';
}

CliOption option_named(const CliCommand& command, const std::string& name) {
    return name.size() < 2 || name[0] != '-' ? CliOption() : command.option(name);
}

std::vector<std::string_view> long_names(const CliCommand& command, std::vector<std::string>& kept) {
    for (const CliOption& option : command.options())
        if (!option.group().empty())
            for (const std::string& name : option.long_names()) kept.push_back(name);
    return {kept.begin(), kept.end()};
}

/// Returns the option of the command that was probably meant; empty: none.
std::string near_option(const CliCommand& command, std::string_view typed) {
    std::vector<std::string> kept;
    const auto names = long_names(command, kept);
    const auto near = spec_text::near_word(typed.substr(typed.find_first_not_of('-')), names);
    return near ? fmt::format("--{}", *near) : "";
}

/// Returns how many values an option takes; an unknown one as the one that was probably meant, else one.
int most_values(const CliCommand& command, const Piece& piece) {
    if (piece.option) return piece.option.most_values();
    for (const OptionWord& word : kOptionWords)
        if (word.typed == piece.name) return word.n_values;
    const CliOption near = option_named(command, near_option(command, piece.name));
    return near ? std::min(near.most_values(), 1) : 1;
}

std::vector<Piece> pieces_of(const CliCommand& command, std::span<const std::string> typed) {
    std::vector<Piece> pieces;
    bool only_positionals = false;
    for (std::size_t i = 0; i < typed.size(); ++i) {
        const std::string& text = typed[i];
        if (!only_positionals && text == "--") {
            only_positionals = true;
            continue;
        }
        if (only_positionals || !looks_like_option(text)) {
            pieces.push_back({"", {text}});
            continue;
        }
        Piece piece{text, {}};
        if (const std::size_t equals = text.find('=');
            text.starts_with("--") && equals != std::string::npos) {
            piece.name = text.substr(0, equals);
            piece.values.push_back(text.substr(equals + 1));
            piece.joined = true;
        }
        const bool is_foreign = here_for(kOptionWords, piece.name) || here_for(kKeyWords, piece.name);
        if (!is_foreign) piece.option = option_named(command, piece.name);
        // -n8 is -n 8.
        if (!is_foreign && !piece.option && !text.starts_with("--") && text.size() > 2) {
            piece.option = option_named(command, text.substr(0, 2));
            if (piece.option) {
                piece.name = text.substr(0, 2);
                piece.values.push_back(text.substr(2));
                piece.joined = true;
            }
        }
        const int least = piece.option ? piece.option.least_values() : 0;
        const int most = most_values(command, piece);
        while (!piece.joined && i + 1 < typed.size()) {
            const int n = static_cast<int>(piece.values.size());
            if (n >= most || (n >= least && looks_like_option(typed[i + 1]))) break;
            piece.values.push_back(typed[++i]);
        }
        pieces.push_back(std::move(piece));
    }
    return pieces;
}

/// Returns a word as it can be typed in a shell.
std::string as_typed(std::string_view text) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
    const std::string shown = printable_text(text);
    if (!shown.empty() && shown.find_first_not_of(kPlain) == std::string::npos) return shown;
    std::string out = "\"";
    for (const char c : shown) {
        if (c == '"' || c == '\\' || c == '$' || c == '`') out += '\\';
        out += c;
    }
    return out + "\"";
}

std::string as_typed(const Piece& piece, const std::string& name) {
    std::string text = name;
    for (const std::string& value : piece.values) text += (text.empty() ? "" : " ") + as_typed(value);
    return text;
}

/// What belongs into a lane's spec: the preset and the keys that were typed as options.
struct LaneWords {
    std::string preset;
    std::vector<std::string> items;
    bool is_empty() const { return preset.empty() && items.empty(); }
    std::string spec() const {
        const std::string name = preset.empty() ? "h2o" : preset;
        return items.empty() ? name : fmt::format("{}:{}", name, fmt::join(items, ","));
    }
};

/// Takes an option whose value stands in a lane's spec here. Returns false if it is none.
bool take_lane_word(const CliCommand& command, const Piece& piece, LaneWords& words) {
    if (!command.option("--lane") || piece.values.empty()) return false;
    if (std::find(kPresetWords.begin(), kPresetWords.end(), piece.name) != kPresetWords.end()) {
        words.preset = spec_text::lower_case(piece.values.front());
        return true;
    }
    std::string key = piece.name.substr(piece.name.find_first_not_of('-'));
    std::replace(key.begin(), key.end(), '-', '_');
    if (const auto here = here_for(kKeyWords, piece.name)) key = *here;
    const std::vector<std::string_view> keys = lane_spec_keys();
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) return false;
    std::string value = piece.values.front();
    if (key == "kv_dtype" && value.starts_with("q8")) value = "q8";
    const std::string item = fmt::format("{}={}", key, value);
    if (std::find(words.items.begin(), words.items.end(), item) == words.items.end())
        words.items.push_back(item);
    return true;
}

/// Returns the other commands that have the option.
std::string others_with(const CliCommand& command, const std::string& name) {
    std::vector<std::string> others;
    if (const CliCommand program = command.program())
        for (const CliCommand& other : program.commands())
            if (other != command && other.option(name)) others.push_back(other.name());
    return others.empty()
               ? ""
               : fmt::format(" ({} {} it)", fmt::join(others, ", "), others.size() == 1 ? "has" : "have");
}

/// The answer to unknown arguments: all of them in order, and the command with ours in their place.
struct Answer {
    std::vector<std::string> unknown, command;
    bool is_whole = true;  ///< every unknown one has a place in the command
};

/// Adds an unknown option to the answer.
void answer_option(const CliCommand& command, const Piece& piece, const std::string& lane, bool& lane_is_out,
                   Answer& answer) {
    std::string said = printable_text(piece.name);
    LaneWords ignored;
    if (take_lane_word(command, piece, ignored)) {
        if (!lane_is_out) answer.command.push_back("--lane " + as_typed(lane));
        lane_is_out = true;
    } else if (const auto here = here_for(kOptionWords, piece.name);
               here &&
               (here->empty() || option_named(command, std::string(here->substr(0, here->find(' ')))))) {
        const bool has_value = here->find(' ') != std::string_view::npos;
        if (has_value)
            answer.command.emplace_back(*here);
        else if (!here->empty())
            answer.command.push_back(as_typed(piece, std::string(*here)));
    } else if (const std::string others = others_with(command, piece.name); !others.empty()) {
        said += others;
        answer.is_whole = false;
    } else if (const std::string near = near_option(command, piece.name); !near.empty()) {
        said += fmt::format(" (did you mean {}?)", near);
        answer.command.push_back(as_typed(piece, near));
    } else {
        answer.is_whole = false;
    }
    answer.unknown.push_back(said);
}

std::size_t most_positionals(const CliCommand& command) {
    std::size_t most = 0;
    for (const CliOption& option : command.options())
        if (option.is_argument()) most += static_cast<std::size_t>(option.most_values());
    return most;
}

bool is_lane(const std::string& word) {
    try {
        (void)parse_lane_spec(with_saved_policy(word));
        return true;
    } catch (const Error&) {
        return false;
    }
}

/// Throws if there are more words than the command takes.
void check_positionals(const CliCommand& command, const std::vector<Piece>& pieces) {
    std::vector<std::string> words, all;
    for (const Piece& piece : pieces)
        if (piece.name.empty()) words.push_back(piece.values.front());
    const std::size_t most = most_positionals(command);
    if (words.size() <= most) return;
    const std::string page = fmt::format("keyhole {} --help lists what there is", command.name());
    if (command.name() == "decode") {
        // Where a quoted text comes first, the others are no part of it.
        const bool is_quoted = words.front().find(' ') != std::string::npos;
        if (!is_quoted && !is_lane(words.back()))
            fail(ErrorCode::wrong_use, "the prompt is one argument; put it in quotes: keyhole decode {}; {}",
                 as_typed(fmt::format("{}", fmt::join(words, " "))), page);
    }
    for (std::size_t i = most; i < words.size(); ++i) {
        all.push_back(as_typed(words[i]));
        if (is_lane(words[i]) && command.option("--lane"))
            fail(ErrorCode::wrong_use, "each lane has a --lane of its own: --lane {}; {}", all.back(), page);
    }
    fail(ErrorCode::wrong_use, "{} does not take {}; {}", command.name(), fmt::join(all, " "), page);
}

}  // namespace

std::string unknown_command_text(const CliCommand& program, std::string_view typed) {
    std::vector<std::string> kept;
    for (const CliCommand& command : program.commands()) kept.push_back(command.name());
    const std::vector<std::string_view> names(kept.begin(), kept.end());
    const auto here = here_for(kCommandWords, spec_text::lower_case(typed));
    const std::string hint =
        here ? fmt::format("; it is {} here;", *here) : spec_text::near_hint(typed, names);
    return fmt::format("there is no command '{}'{} commands are: {}", shown_text(typed),
                       hint.empty() ? ";" : hint, fmt::join(names, " "));
}

void check_typed(const CliCommand& command, std::span<const std::string> typed) {
    const std::vector<Piece> pieces = pieces_of(command, typed);
    LaneWords lane;
    bool is_known = true;
    for (const Piece& piece : pieces) {
        if (piece.name.empty() || piece.option) continue;
        is_known = false;
        (void)take_lane_word(command, piece, lane);
    }
    if (is_known) return check_positionals(command, pieces);
    Answer answer;
    bool lane_is_out = false;
    for (const Piece& piece : pieces) {
        if (piece.name.empty()) {
            answer.command.push_back(as_typed(piece, ""));
        } else if (piece.option) {
            const auto names = piece.option.long_names();
            answer.command.push_back(as_typed(piece, names.empty() ? piece.name : "--" + names.front()));
        } else {
            answer_option(command, piece, lane.spec(), lane_is_out, answer);
        }
    }
    const std::string page = fmt::format("keyhole {} --help lists its options", command.name());
    if (answer.is_whole)
        fail(ErrorCode::wrong_use, "{} does not know {}; write: keyhole {} {}; {}", command.name(),
             fmt::join(answer.unknown, ", "), command.name(), fmt::join(answer.command, " "), page);
    fail(ErrorCode::wrong_use, "{} does not know {}; {}", command.name(), fmt::join(answer.unknown, ", "),
         page);
}

}  // namespace keyhole
