#include "app/cli/options.h"

#include "app/base/assets.h"
#include "app/base/saved_policies.h"
#include "app/cli/commands.h"
#include "app/cli/model_option.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/load_listener.h"
#include "engine/base/mapped_file.h"
#include "engine/base/standard_input.h"
#include "engine/device/make_backend.h"
#include "engine/model/described_model.h"
#include "engine/policy/option_help.h"
#include "engine/run/prompt_file.h"
#include "engine/run/sampler.h"
#include "engine/run/text_notice.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace keyhole {

void RunOptions::add_model(const CliCommand& command) {
    command
        .add_option("-m,--model", model,
                    "a Hugging Face folder, a GGUF file, ORG/NAME of the hub, or a name of the catalogue "
                    "(default: KEYHOLE_MODEL, else the demo model)")
        .some_path();
    yes_option = add_yes(command, "get a model of the catalogue that is not here without asking");
}

void RunOptions::add_backend(const CliCommand& command) {
    command.add_option("--backend", backend, "where it is computed").one_of({"auto", "cpu", "cuda"});
    command.add_option("-t,--threads", n_threads, "CPU threads (default: all cores)").within(0, 1024);
    command.add_option("--device", device, "CUDA device by index (default: 0)").within(0, 1024);
    command
        .add_option(
            "--precision", precision,
            "what products are computed in: floats, or what the weights have, which is faster: integers "
            "where they are quantised, and on CUDA the type of 16-bit weights in prompts (auto: floats "
            "for figures, tables, lessons, and on CUDA for prompts of small models)")
        .one_of({"auto", "float", "weights"});
}

void RunOptions::add_prompt(const CliCommand& command, std::vector<std::string>* several) {
    CliOption as_text = command.add_option("-p,--prompt", prompt,
                                           "text to start from; an empty one is the model's BOS token");
    prompt_option = as_text;
    if (several != nullptr)
        command
            .add_option("-f,--prompt-file", *several,
                        "file with the text to start from, or - for standard input; repeat for several, "
                        "each is a run")
            .repeated()
            .some_path()
            .excludes(as_text);
    else
        command
            .add_option("-f,--prompt-file", prompt_file,
                        "file with the text to start from, or - for standard input")
            .some_path()
            .excludes(as_text);
    command.add_flag("--chat", chat,
                     "write the prompt and each `say` as a turn, in the form of the model's chat template");
}

void RunOptions::add_text(const CliCommand& command) {
    CliOption option =
        command.add_option("TEXT", text, "the prompt, in quotes; - reads it from standard input");
    for (const char* other : {"--prompt", "--prompt-file"}) option.excludes(command.option(other));
    text_option = option;
}

void RunOptions::add_lanes(const CliCommand& command) {
    command
        .add_option(
            "-l,--lane", lanes,
            "lane spec, preset[:key=value,...]; repeat for lanes side by side, the first is the reference")
        .rewritten(with_saved_policy)
        .repeated();  // else it takes the prompt that follows
}

void RunOptions::add_sampling(const CliCommand& command) {
    command.add_option("-n,--tokens", n_tokens, "tokens to generate").within(1, 1 << 24).shows_default();
    const CliOption follow_flag =
        command.add_flag("--follow", follow, "feed every lane the first lane's token");
    command.add_flag("--free", free, "each lane goes on with its own token (default)").excludes(follow_flag);
    command.add_flag("--ignore-eos", ignore_eos, "go on after the end-of-text token");
    command.add_option("--temperature", sampling.temperature, "0 is greedy")
        .within(0.0, kHottest)
        .shows_default();
    command.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens, 0: all").from(0);
    command.add_option("--top-p", sampling.top_p, "sample from the likeliest tokens that hold this mass")
        .within(kLeastMass, 1.0);
    add_token_rules(command, sampling);
    command.add_option("-s,--seed", seed, "seed of the sampling").natural().shows_default();
    command
        .add_option(
            "--script", script,
            "file of commands to apply while it runs, or -: a line is `+N command` (after N tokens) or `STEP "
            "command`")
        .some_path();
}

void add_token_rules(const CliCommand& command, Sampling& sampling) {
    command
        .add_option("--repetition-penalty", sampling.repetition_penalty,
                    "divides the logits of tokens that the text holds, and multiplies them where negative; "
                    "1: off")
        .within(kLeastPenalty, kMostPenalty)
        .shows_default();
    command
        .add_option("--no-repeat-ngram", sampling.no_repeat_ngram,
                    "no sequence of this many tokens comes twice, the prompt included; 0: off")
        .from(0);
    command.add_option("--min-tokens", sampling.min_tokens, "the text does not end before so many tokens")
        .from(0);
}

RunSpec RunOptions::run_spec(PromptGuide* guide) const {
    RunSpec spec;
    spec.prompt = prompt;
    if (!prompt_file.empty()) {
        PromptFile file = read_prompt_file(prompt_file);
        print_warning(notice_of_bytes(file.text, prompt_file));
        if (file.text.empty())
            fail(ErrorCode::wrong_use,
                 "{} is empty, and a prompt needs a text; --prompt '' starts from the model's BOS token",
                 prompt_file == kStandardInput ? "standard input" : prompt_file);
        spec.prompt = std::move(file.text);
        if (guide != nullptr) *guide = std::move(file.guide);
    }
    if (text_option.is_given()) spec.prompt = text;
    if (prompt_file.empty() && !prompt_option.is_given() && !text_option.is_given())
        fail(ErrorCode::wrong_use,
             "there is no prompt; give it as TEXT in quotes, --prompt-file FILE, or --prompt-file - for "
             "standard input");
    for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
    if (spec.lanes.empty()) spec.lanes.push_back(parse_lane_spec("full"));
    spec.follow = follow;
    spec.ignore_eos = ignore_eos;
    spec.chat = chat;
    spec.n_generate = n_tokens;
    spec.sampling = sampling;
    spec.seed = seed;
    return spec;
}

void check_is_no_input(std::string_view option, const std::string& out, std::span<const std::string> inputs) {
    std::error_code ignored;
    for (const std::string& in : inputs)
        if (!out.empty() && !in.empty() && std::filesystem::equivalent(out, in, ignored))
            fail(ErrorCode::wrong_use,
                 "{} would replace {}, which this command reads; name another file to write", option, in);
}

void note_lanes(std::span<const LaneSpec> lanes) {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::string note = replaced_by_release(lanes[i]);
        if (!note.empty()) note = "dialect=released sets " + note;
        for (const std::string& more :
             {settings_without_effect(lanes[i]), raised_budget(lanes[i]), filled_by_protection(lanes[i])})
            if (!more.empty()) note += (note.empty() ? "" : "; ") + more;
        if (!note.empty()) print_note("keyhole: lane {}: {}\n", i, printable_text(note));
    }
}

BackendOptions RunOptions::backend_options() const {
    BackendOptions options;
    const auto place_in = [](const auto& words, const std::string& word) {
        return std::ranges::find(words, word) - words.begin();
    };
    options.choice = static_cast<BackendChoice>(place_in(kBackendWords, backend));
    options.n_threads = n_threads;
    options.device = device;
    options.precision = static_cast<Precision>(place_in(kPrecisionWords, precision));
    return measures ? for_measures(options) : options;
}

CliOption add_yes(const CliCommand& command, const std::string& what) {
    CliOption option = command.option("--yes");
    if (!option) return command.add_flag("--yes", what);
    return option.set_help(option.help() + "; " + what);
}

std::string demo_model_folder() {
    const std::filesystem::path folder = find_assets() / "models" / "keyhole-base";
    std::error_code ignored;
    return std::filesystem::exists(folder / "config.json", ignored) ? folder.string() : std::string();
}

void print_warning(std::string_view warning) {
    if (!warning.empty()) print_note("keyhole: warning: {}\n", printable_text(warning));
}

std::string read_input_text(const std::filesystem::path& file) {
    std::string text = read_text_input(file);
    print_warning(notice_of_bytes(text, file));
    return text;
}

void print_warnings(const Model& model) {
    for (const std::string& warning : model.warnings())
        print_note("keyhole: warning: {}\n",
                   printable_text(fmt::format("{}: {}", model.path().string(), warning)));
}

void note_precision(const Backend& backend) {
    if (const std::string text = backend.precision_text(); !text.empty()) print_note("keyhole: {}\n", text);
}

LoadedModel load_for_run(const RunOptions& options) {
    LoadedModel loaded;
    const std::filesystem::path path = model_path(options);
    std::unique_ptr<Progress> bar;
    const auto show = [&](const char* what, double share) {
        if (bar == nullptr)
            bar = std::make_unique<Progress>(fmt::format("{} {}", what, path.filename().string()), 1);
        bar->update(share);
    };
    loaded.model = load_model(path, [&](double share) { show("loading", share); });
    bar = nullptr;
    print_warnings(*loaded.model);
    std::string notice;
    BackendOptions backend = options.backend_options();
    backend.prove = proof_progress();
    {
        const LoadListener listener([&](double share) { show("laying out", share); });
        loaded.backend = make_backend(loaded.model, backend, &notice);
        bar = nullptr;
    }
    note_precision(*loaded.backend);
    loaded.backend_text = loaded.backend->name() + (notice.empty() ? "" : " (" + notice + ")");
    return loaded;
}

std::function<bool(double share, const std::string& what)> proof_progress() {
    return [bar = std::shared_ptr<Progress>()](double share, const std::string& what) mutable {
        if (what.empty()) return true;  // it is not sure yet that the device needs a proof
        if (bar == nullptr) bar = std::make_shared<Progress>("proving the CUDA device, once", 1);
        bar->update(share);
        return true;
    };
}

}  // namespace keyhole
