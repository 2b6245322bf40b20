/// Reads the options that eval and sweep share: model, lanes and questions.
/// Main thread; knows no window.
#pragma once

#include "app/cli/command.h"

#include "app/cli/data_arguments.h"
#include "app/cli/options.h"
#include "engine/eval/evaluate.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct EvalOptions {
    RunOptions run;  ///< model, lanes, backend
    std::string text, task, passages, distance;
    std::string ask = "question";
    std::string ask_when = "before";  ///< before, after, both or decoding
    std::string against;  ///< lane that differences refer to: its name, spec or number; empty: the first
    std::string shard;    ///< "2/4", see Shard; empty: all questions
    std::string job;      ///< slurm or parallel: write a job file and answer nothing
    int n_shards = 4;     ///< of the job file
    std::string sort;     ///< of printed tables: right, nats, bytes; empty: as given
    int context = 0;      ///< 0: the model's n_ctx, at most 1024
    int n_prefill = 0;
    int n_samples = 0;
    std::uint64_t seed = 1;
    bool always_draws = false;  ///< the command draws with the seed itself
    int n_bounds = 0;           ///< seeds of `random` beside the lanes, with an `oracle`; 0: neither
    CliOption bounds;           ///< --bounds; none: the command has neither floor nor ceiling
    CliCommand owner;           ///< the command that has these options
    DataArguments data;
    std::vector<AskWhen> whens() const;
    /// Refuses budgets in shares of the prompt where that is one token: --ask-when decoding. Throws
    /// Error(wrong_use).
    void check_budgets(std::span<const LaneSpec> lanes) const;
    /// Returns the only set of questions. command: its name, for refusals. Throws Error(wrong_use).
    QuestionSet one_set(const std::shared_ptr<const Model>& model, std::string_view command) const;

    void add(const CliCommand& command);
    /// Adds --bounds, for commands that show a floor and a ceiling unless it is 0.
    void add_bounds(const CliCommand& command);
    /// Adds --against and --sort, for commands that print tables of lanes.
    void add_table(const CliCommand& command);
    /// Adds --shard, --job and --shards, for commands that keep answers in a folder.
    void add_shard(const CliCommand& command);
    /// With --job: writes job.sh into the folder, says how it is used, and returns true; the command then
    /// does nothing else. Throws Error(wrong_use) without a folder.
    bool writes_job(const std::string& out) const;
    /// Returns the index of the lane that differences refer to. Throws Error(wrong_use) if there is none.
    std::size_t against_index(std::span<const std::string> labels, std::span<const LaneSpec> specs) const;
    /// Returns the questions of each task or of the data files, or the windows of the text. Throws
    /// Error(wrong_use) if the options name none of them, or are invalid.
    std::vector<QuestionSet> questions(const std::shared_ptr<const Model>& model) const;
    int context_of(const Model& model) const;
    /// Returns the numbers of tokens of a set's texts, ascending: of generated questions and windows of a
    /// text n_tokens alone, of a user's own one for each.
    std::vector<int> text_lengths(const QuestionSet& set, int n_tokens) const;
    /// Returns how many tokens of a question's text, n_tokens long, are its prompt.
    int prompt_of(const QuestionSet& set, int n_tokens) const;
    /// Returns whether the lane may evict a token of the longest of these texts.
    bool may_evict(const Model& model, const QuestionSet& set, std::span<const int> lengths,
                   const LaneSpec& lane) const;
    /// Returns the bytes of K and V of a lane over texts of these lengths: after them their mean, and the
    /// most at a time.
    KvBytes kv_bytes_of(const Model& model, const Backend& backend, const QuestionSet& set,
                        std::span<const int> lengths, const LaneSpec& lane) const;
    /// Returns what was asked, for --json: context, seed, samples, and the text or --ask of tasks.
    nlohmann::json about_json(const Model& model) const;
    /// Returns the lanes as typed, `full` if none was given, and then the bounds.
    std::vector<LaneSpec> lanes() const;
    std::vector<LaneSpec> typed_lanes() const;
    /// Says it where no oracle stands beside lanes that have a budget, since it would take much memory.
    void note_bounds() const;
    /// Returns the names of typed_lanes(), "" where the user gave none.
    std::vector<std::string> names() const;
    /// Returns lanes() as text: their names, or else their specs as typed.
    std::vector<std::string> labels() const;
    /// Returns a line for each lane with a name: "ten = sink:budget=32,..."; empty if none has one.
    std::string names_text() const;

  private:
    void check_draws(std::string_view why) const;
    void check_used(std::span<const QuestionSet> of_data) const;
    bool has_oracle() const;
    std::int64_t tokens_ahead() const;
    std::string portable_value(std::string_view option, const std::string& value) const;
};

}  // namespace keyhole
