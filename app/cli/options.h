/// Reads the options that commands share (model, prompt, lanes, sampling, backend). Main thread.
#pragma once

#include "app/cli/command.h"

#include "app/cli/progress.h"
#include "engine/backend/backend.h"
#include "engine/base/backend_options.h"
#include "engine/session/session.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct PromptGuide;

/// The options of a run as typed. run_spec() checks them.
struct RunOptions {
    std::string model;  ///< as typed; see model_path()
    CliOption yes_option;
    std::string prompt, prompt_file;
    CliOption prompt_option;  ///< distinguishes an empty `prompt` from none
    std::string text;         ///< the prompt as an argument without an option
    CliOption text_option;
    std::vector<std::string> lanes;
    int n_tokens = 64;
    bool follow = false, free = false;
    bool ignore_eos = false;
    bool chat = false;
    Sampling sampling;
    std::uint64_t seed = 1;
    std::string backend = "auto";
    int n_threads = 0;
    int device = 0;
    std::string precision = "auto";
    bool measures = false;  ///< what it makes is to be the same on both backends: see for_measures()
    std::string script;

    void add_model(const CliCommand& command);
    void add_backend(const CliCommand& command);
    /// several: receives the prompt files of a command that takes more than one, in place of `prompt_file`.
    void add_prompt(const CliCommand& command, std::vector<std::string>* several = nullptr);
    /// Adds the prompt as an argument; call it after add_prompt().
    void add_text(const CliCommand& command);
    void add_lanes(const CliCommand& command);
    void add_sampling(const CliCommand& command);

    /// Reads the prompt file and parses lanes and script. It cannot resolve script rows relative to
    /// n_prompt, since they need the tokenizer: see script_commands.
    /// guide: receives what lies beside the prompt file; may be null.
    RunSpec run_spec(PromptGuide* guide = nullptr) const;
    /// Without BackendOptions::prove.
    BackendOptions backend_options() const;
    bool says_yes() const { return yes_option.is_given(); }
};

/// Throws Error(wrong_use) if a file that is to be written is one that the command reads. option: that names
/// it, such as "--save". Empty names are none.
void check_is_no_input(std::string_view option, const std::string& out, std::span<const std::string> inputs);

/// Prints a line for each lane with an option that its dialect replaces or that has no effect, or with a
/// budget that is raised or leaves nothing to rank.
void note_lanes(std::span<const LaneSpec> lanes);

/// Adds the options of token_rules.h to a command.
void add_token_rules(const CliCommand& command, Sampling& sampling);

/// Adds --yes to a command, or another use of it. what: the question that it answers.
CliOption add_yes(const CliCommand& command, const std::string& what);

/// Returns the demo model's folder beside the program or its sources; empty if it is not there.
std::string demo_model_folder();

struct LoadedModel {
    std::shared_ptr<const Model> model;
    std::unique_ptr<Backend> backend;
    std::string backend_text;  ///< its name, and why no other one was taken, if there is a reason
};
/// Prints to stderr what the backend computes in another precision than the CPU, if it does.
void note_precision(const Backend& backend);
/// Loads the model, prints its warnings to stderr, and makes the backend.
LoadedModel load_for_run(const RunOptions& options);
/// Prints one warning; nothing for an empty text.
void print_warning(std::string_view warning);
/// Reads a text that a model will read, from a file or a pipe, and warns if it is not UTF-8. Throws as
/// read_text_input() does.
std::string read_input_text(const std::filesystem::path& file);
void print_warnings(const Model& model);

/// Returns a BackendOptions::prove that draws a progress bar, from when the proof really runs.
std::function<bool(double share, const std::string& what)> proof_progress();

}  // namespace keyhole
