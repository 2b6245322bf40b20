#include "app/base/command_text.h"
#include "app/base/saved_policies.h"
#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/data_arguments.h"
#include "app/cli/decode_beams.h"
#include "app/cli/decode_report.h"
#include "app/cli/export_options.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/standard_input.h"
#include "engine/export/export_files.h"
#include "engine/export/exporter.h"
#include "engine/run/command_script.h"
#include "engine/run/prompt.h"
#include "engine/run/prompt_file.h"
#include "engine/session/prompt_tiles.h"
#include "engine/session/run_answers.h"
#include "engine/trace/lane_failure.h"
#include "engine/trace/run_history.h"
#include "engine/trace/trace_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

namespace keyhole {

namespace {

struct DecodeOptions {
    RunOptions run;
    std::vector<std::string> prompt_files;
    BeamArguments beams;
    ExportArguments exports;
    std::string save, system;
    std::vector<std::string> stop;  ///< of the lanes' own answers; empty: as the prompt's file says
    bool json = false;
};

/// One prompt with what is known before the model is loaded.
struct PromptRun {
    DecodeOptions options;
    RunSpec spec;
    RunExport exports;
    std::vector<ScriptLine> script;
    PromptGuide guide;
    bool staged = false;  ///< its export goes into the folder with those of other prompts
};

/// Returns an upper bound of the bytes of the run's attention and scores in a spool: for each row two for
/// each held token and query head, and four for each held token and KV head; the prompt's attention.
std::int64_t trace_size(const Model& model, const RunSpec& spec, int n_prompt) {
    std::int64_t sum = 0;
    const std::vector<KvLayout> layouts = layouts_of(model, spec.lanes);
    for (std::size_t i = 0; i < spec.lanes.size(); ++i) {
        const KvLayout& layout = layouts[i];
        const ResolvedPolicy policy =
            resolve(spec.lanes[i].policy, n_prompt, spec.n_generate, head_grid(layout));
        const auto n_held = [&](int layer, int head) {
            // The released codes hide tokens but free nothing.
            const bool frees = spec.lanes[i].policy.dialect == Dialect::paper;
            const std::int64_t most = frees ? policy.at(layer, head).stored : ResolvedPolicy::kUnlimited;
            const std::int64_t first = n_prompt, end = first + spec.n_generate;
            const std::int64_t full = std::clamp(most, first, end);  // from this row on `most` + 1 are held
            return (full - first) * (first + full + 1) / 2 + (end == full ? 0 : (end - full) * (most + 1));
        };
        for (int layer = 0; layer < layout.n_layers(); ++layer)
            for (int head = 0; head < layout.n_heads(); ++head) sum += 2 * n_held(layer, head);
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            const HeadRef& reader = layout.kv_head(g).readers.front();
            sum += 4 * n_held(reader.layer, reader.head);
        }
    }
    // The prompt's attention, once for all lanes with the model's KV heads.
    const std::int64_t n_heads = std::int64_t{model.config().n_layers} * model.config().n_heads;
    const int reduction = prompt_reduction(to_index(n_heads), to_index(n_prompt));
    const std::int64_t size = (n_prompt + reduction - 1) / reduction;
    const auto n_own = std::count_if(spec.lanes.begin(), spec.lanes.end(), [](const LaneSpec& lane) {
        return lane.sharing.kind != KvSharing::Kind::own;
    });
    return sum + (1 + n_own) * 2 * n_heads * size * size;
}

/// Throws if the disk has no room for the rows in the spool and, packed, in the trace at the same time.
void check_trace_size(std::int64_t spool_bytes, const std::filesystem::path& file) {
    const std::int64_t needed = spool_bytes + spool_bytes / 2;
    std::error_code error;
    const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
    const std::filesystem::space_info space = std::filesystem::space(folder, error);
    if (!error && static_cast<std::uintmax_t>(needed) > space.available)
        fail(
            ErrorCode::io,
            "saving the run as {} needs up to {} while it is written, the disk of {} has {} free; take fewer "
            "tokens or lanes, or another disk",
            file.string(), format_bytes(needed), folder.string(),
            format_bytes(static_cast<std::int64_t>(space.available)));
}

/// Returns what views may refer to, before the run is made. A script can add and remove lanes, so their
/// number is unknown.
ViewLimits limits_of(const ModelConfig& config, const RunSpec& spec, int n_prompt, int last_row) {
    return {config.n_layers, config.n_heads, spec.commands.empty() ? static_cast<int>(spec.lanes.size()) : -1,
            n_prompt - 1, last_row};
}

/// Warns if the text ended before the script's last commands, which are then left out.
void warn_of_commands_left_out(const RunSpec& spec, const RunHistory& history, const std::string& script) {
    const auto last_turn =
        std::find_if(spec.commands.rbegin(), spec.commands.rend(), [](const LoggedCommand& logged) {
            return turns_back(logged.command);
        }).base();
    const auto first = std::find_if(last_turn, spec.commands.end(), [&](const LoggedCommand& logged) {
        return logged.row > history.last_row();
    });
    if (first == spec.commands.end()) return;
    print_note(
        "keyhole: warning: {}: the run ended with step {}; {} commands for later steps were left out, the "
        "first is '{}' after step {}\n",
        script, history.last_row(), spec.commands.end() - first, shown_text(format_command(first->command)),
        first->row);
}

/// Returns the options of each prompt. Several prompts have folders and traces of their own, named by their
/// files.
std::vector<DecodeOptions> of_each_prompt(const DecodeOptions& options) {
    namespace fs = std::filesystem;
    if (options.prompt_files.empty() && options.run.text == kStandardInput) {
        DecodeOptions piped = options;
        piped.run.prompt_file = std::string(kStandardInput);
        piped.run.text_option = {};
        return {piped};
    }
    if (options.prompt_files.empty()) {
        std::error_code ignored;
        if (const std::string& text = options.run.text; !text.empty() && fs::is_regular_file(text, ignored))
            print_note("keyhole: '{0}' is taken as the prompt's text; --prompt-file {0} reads the file\n",
                       printable_text(text));
        return {options};
    }
    std::vector<DecodeOptions> all;
    std::set<std::string> names;
    for (const std::string& file : options.prompt_files) {
        DecodeOptions& one = all.emplace_back(options);
        one.run.prompt_file = file;
        if (options.prompt_files.size() == 1) return all;
        const std::string stem = fs::path(file).stem().string();
        std::string name = stem;
        for (int n = 2; !names.insert(name).second; ++n) name = fmt::format("{}-{}", stem, n);
        if (!one.exports.folder.empty()) one.exports.folder = (fs::path(one.exports.folder) / name).string();
        if (const fs::path save = options.save; !save.empty())
            one.save = (save.parent_path() /
                        fmt::format("{}-{}{}", save.stem().string(), name, save.extension().string()))
                           .string();
    }
    return all;
}

/// Returns the script with the specs of saved policies in place of their names.
std::vector<ScriptLine> script_of(const std::string& file) {
    std::vector<ScriptLine> lines = read_script_lines(file);
    for (ScriptLine& line : lines) {
        const std::size_t blank = line.text.find_first_of(" \t");
        const std::size_t begin = line.text.find_first_not_of(" \t", std::min(blank, line.text.size()));
        if (begin == std::string::npos) continue;
        try {
            line.text = line.text.substr(0, begin) + command_with_saved_policy(line.text.substr(begin));
        } catch (const Error& error) {
            fail(ErrorCode::wrong_use, "{}:{}: {}", file, line.number, error.what());
        }
    }
    return lines;
}

PromptRun prepared(const DecodeOptions& options) {
    PromptRun run;
    run.options = options;
    run.spec = options.run.run_spec(&run.guide);
    run.exports = options.exports.parsed(static_cast<int>(run.spec.lanes.size()));
    if (!options.run.script.empty()) run.script = script_of(options.run.script);
    if (!options.stop.empty() && !run.exports.has_answers())
        fail(ErrorCode::wrong_use,
             "--stop is for the lanes' own answers; give --out FOLDER with it, and `answers` to an --export");
    const Sampling& sampling = options.run.sampling;
    if (sampling.temperature == 0 && (sampling.top_k > 0 || sampling.top_p < 1) && run.script.empty())
        fail(ErrorCode::wrong_use,
             "--top-k and --top-p are for sampling, and temperature 0 takes the likeliest token; give "
             "--temperature as well");
    const bool has_beams = options.beams.parsed().n_beams > 1;
    if (has_beams && (options.exports.given() || !options.save.empty() || !options.run.script.empty()))
        fail(ErrorCode::wrong_use,
             "--beams prints the texts that it finds; exports, --save and --script need one text a lane: "
             "leave them out, or --beams");
    return run;
}

/// Says where records lie that no trace holds yet.
std::string records_text(const TraceWriter& trace) {
    const std::string spool = printable_text(trace.spool().string());
    return fmt::format("{}: `keyhole replay {}` makes a trace of them", spool, shell_word(spool));
}

/// Says what a signal leaves. folder: of an export that is not written yet; empty: none.
void kept_on_a_signal(const TraceWriter* trace, const std::string& folder) {
    std::string note = folder.empty() ? "" : printable_text(folder) + " is as it was before";
    if (trace != nullptr && trace->has_records())
        note += fmt::format("{}the steps so far are in {}", note.empty() ? "" : "; ", records_text(*trace));
    set_termination_note(note);
}

bool has_shadows(const RunSpec& spec) {
    return std::any_of(spec.lanes.begin(), spec.lanes.end(),
                       [](const LaneSpec& lane) { return lane.policy.shadow; });
}

/// Sets what the rows shall give. Throws if an export names what the run will not have.
void request_values(PromptRun& run, const ModelConfig& config, int n_prompt, int last_row) {
    RunSpec& spec = run.spec;
    const bool shadows = has_shadows(spec);
    spec.requested = run.exports.requested();
    if (run.options.exports.given()) run.exports.check(limits_of(config, spec, n_prompt, last_row));
    if (!run.options.save.empty()) spec.requested.attention = spec.requested.scores = true;
    if (shadows) spec.requested.attention = true;  // for the sink share
    if (std::ranges::any_of(spec.lanes, has_own_formula)) spec.requested.scores = true;
    if (run.exports.files.shadow && !shadows)
        print_note("no lane starts with shadow=on; lanes without a shadow get no shadow.npy\n");
    if (run.exports.files.next) spec.n_top = 64;
}

/// Returns where the exports go; null without an export.
std::unique_ptr<ExportSink> opened_export(const PromptRun& run, const Model& model, int n_prompt,
                                          int last_row) {
    if (!run.options.exports.given()) return nullptr;
    auto sink = std::make_unique<ExportSink>(
        run.exports.files, ExportShape{model.layout(), n_prompt, static_cast<int>(run.spec.lanes.size()),
                                       last_row, layouts_of(model, run.spec.lanes), model.config().head_dim});
    print_note("exports take about {}, {} files, in {}\n", format_bytes(sink->estimated_bytes()),
               sink->estimated_files(), printable_text(run.options.exports.folder));
    return sink;
}

/// Returns where the records go; null without --save.
std::unique_ptr<TraceWriter> opened_trace(const PromptRun& run, const Model& model, int n_prompt) {
    const std::string& file = run.options.save;
    if (file.empty()) return nullptr;
    const std::int64_t n_bytes = trace_size(model, run.spec, n_prompt);
    check_trace_size(n_bytes, file);
    auto trace = std::make_unique<TraceWriter>(file);
    print_note("the records of the trace take up to {} in {}\n", format_bytes(n_bytes),
               printable_text(trace->spool().string()));
    if (!trace->rescued().empty())
        print_note("{} held the records of an interrupted run: they are saved as {} now\n",
                   printable_text(trace->spool().string()), printable_text(trace->rescued().string()));
    return trace;
}

/// Returns what each lane says by itself after the prompt, where an export shows it.
std::vector<ShownAnswer> own_answers(const PromptRun& run, const LoadedModel& loaded, int last_row) {
    std::vector<ShownAnswer> answers;
    if (!run.exports.has_answers()) return answers;
    Progress progress("answers", 1);
    const auto report = [&](double done) {
        check_termination();
        progress.update(done);
        return true;
    };
    for (LaneAnswer& answer :
         answers_of_run(loaded.model, *loaded.backend, run.spec, last_row, run.guide.end, report))
        answers.push_back({static_cast<int>(answers.size()), std::move(answer), {}, {}});
    mark_answers(answers, run.guide.answer);
    return answers;
}

/// What remains of a run when it has ended.
struct DecodedRun {
    RunHistory history;
    int stride = 1, dense_from = 0;
};

/// Decodes all steps. streams: their text is printed meanwhile.
DecodedRun decode_steps(const PromptRun& run, const LoadedModel& loaded, int n_prompt, int last_row,
                        ExportSink* sink, TraceWriter* trace, bool streams) {
    // With a trace the rows are on disk already. These are only for pictures and for means of shadows.
    constexpr std::size_t kForNone = std::size_t{16} << 20;
    Recorder recorder(sink != nullptr || has_shadows(run.spec) ? Recorder::kExportBudgetBytes : kForNone);
    LiveRun live(n_prompt, run.spec.n_generate, streams);
    bool is_noted = trace == nullptr;
    replay(
        loaded.model, *loaded.backend, run.spec, last_row, sink,
        [&](std::shared_ptr<const StepTrace> step) {
            recorder.push(step);
            if (trace != nullptr) trace->append(*step);
            if (!is_noted) {  // from its first record on there is a spool to name
                kept_on_a_signal(trace, sink != nullptr ? run.options.exports.folder : "");
                is_noted = trace->has_records();
            }
            live.add(*step);
        },
        [&](double done) {
            live.read_prompt(done);
            return true;
        });
    live.end();
    const auto kept = recorder.snapshot();
    DecodedRun decoded;
    decoded.history.update(kept.steps);
    decoded.stride = kept.stride;
    decoded.dense_from = kept.dense_from;
    return decoded;
}

/// failures: gets a line for each part that is not written.
void write_export(PromptRun& run, const DecodedRun& decoded, ExportSink& sink,
                  std::vector<ShownAnswer> answers, std::vector<std::string>& failures) {
    Progress progress("export", 1);
    RunExport& exports = run.exports;
    std::vector<std::string> left_out =
        exports.leave_out_missing(decoded.history, !run.options.exports.watch.empty());
    exports.how.answers = std::move(answers);
    exports.how.right_answer = run.guide.answer;
    exports.how.left_out = &left_out;
    sink.finish(
        decoded.history,
        [&](double done, const std::string&) {
            check_termination();
            progress.update(done);
        },
        exports.write_views_of(decoded.history, decoded.stride, decoded.dense_from));
    left_out.insert(left_out.end(), sink.left_out().begin(), sink.left_out().end());
    for (const std::string& what : left_out) failures.push_back(what + kRestIsWritten);
    const std::string& folder = run.options.exports.folder;
    kept_on_a_signal(nullptr, run.staged ? folder : "");
    if (!run.staged) print_note("written to {}\n", printable_text(folder));
}

void save_trace(TraceWriter& trace, const std::string& file) {
    Progress progress("save", 1);
    trace.finish([&](double done) {
        progress.update(done);
        return !termination_requested();
    });
    print_note("trace saved as {}\n", printable_text(file));
}

/// Calls what may fail while the records lie in the spool alone. The error then says where.
template <class Work>
auto with_records_named(const TraceWriter* trace, Work work) {
    try {
        return work();
    } catch (const Error& error) {
        if (trace == nullptr || !trace->has_records() || error.code() == ErrorCode::cancelled)
            throw;  // the note says it
        fail(error.code(), "{}; the steps before it are in {}", error.what(), records_text(*trace));
    }
}

/// failures: gets a line for each lane that failed. made: gets the wanted JSON once the run is made and its
/// trace is saved, before the export, which may fail.
void decode(const LoadedModel& loaded, PromptRun run, std::vector<std::string>& failures,
            const std::function<void(nlohmann::json)>& made) {
    const DecodeOptions& options = run.options;
    RunSpec& spec = run.spec;
    if (const std::string why = spec.chat ? chat_notice(*loaded.model) : ""; !why.empty())
        print_note("keyhole: {}\n", why);
    const int n_prompt = static_cast<int>(prompt_tokens(*loaded.model, spec).size());
    const int last_row = n_prompt + spec.n_generate - 1;
    spec.commands = parse_timed_script(options.run.script, run.script, n_prompt, last_row);
    request_values(run, loaded.model->config(), n_prompt, last_row);

    const TerminationGuard guard;  // before the objects that it guards
    PromptGuide& guide = run.guide;
    if (options.exports.watch.empty()) run.exports.watch(guide.watch);
    run.exports.files.command = command_text();  // with the model, now that it is known
    const std::unique_ptr<ExportSink> sink = opened_export(run, *loaded.model, n_prompt, last_row);
    const std::unique_ptr<TraceWriter> trace = opened_trace(run, *loaded.model, n_prompt);
    const std::string folder = sink != nullptr ? options.exports.folder : "";
    kept_on_a_signal(trace.get(), folder);

    if (!options.exports.right.empty()) guide.answer = options.exports.right;
    if (!options.stop.empty()) {
        guide.end.stop = options.stop;
        std::erase(guide.end.stop, "");
    }
    spec.answer_end = guide.end;  // a trace keeps these: `replay` reads answers from records
    spec.right_answer = guide.answer;
    spec.watch = options.exports.watch.empty() ? guide.watch : options.exports.watch;
    std::vector<ShownAnswer> answers = own_answers(run, loaded, last_row);

    // A script may rewind the run or remove the lane: then the text is known at the end.
    const bool streams = !options.json && spec.commands.empty();
    if (!options.json) print_decode_head(loaded, n_prompt);
    const DecodedRun decoded = with_records_named(trace.get(), [&] {
        return decode_steps(run, loaded, n_prompt, last_row, sink.get(), trace.get(), streams);
    });
    const RunHistory& history = decoded.history;
    warn_of_commands_left_out(spec, history, options.run.script);
    for (std::string& line : lane_failures(*history.steps().back())) failures.push_back(std::move(line));
    if (!options.json) print_run(history, streams);
    if (trace != nullptr) with_records_named(trace.get(), [&] { save_trace(*trace, options.save); });
    kept_on_a_signal(nullptr, folder);
    if (options.json) made(decode_json(loaded, history));
    if (sink != nullptr) write_export(run, decoded, *sink, std::move(answers), failures);
}

/// Sets the prompt's tokens behind a system message, and throws if the model cannot read so many: several
/// prompts are all counted before the first one is decoded.
void count_prompt(PromptRun& run, const Model& model) {
    const std::string& file = run.options.run.prompt_file;
    try {
        if (!run.options.system.empty())
            run.spec.prompt_tokens = prompt_tokens_behind(run.options.system, model, run.spec.prompt);
        check_fits(model.config(), prompt_tokens(model, run.spec));
    } catch (const Error& error) {
        if (file.empty() || file == kStandardInput) throw;
        fail(error.code(), "{}: {}", file, error.what());
    }
}

/// The JSON of a command. That of one prompt is printed when its run is made, before its export.
class JsonOfRuns {
  public:
    JsonOfRuns(bool wanted, bool are_several) : wanted_(wanted), are_several_(are_several) {}
    void add(nlohmann::json json, const std::string& file) {
        if (!wanted_) return;
        if (!are_several_) return print(json);
        json["prompt_file"] = file;
        all_.push_back(std::move(json));
    }
    /// Prints what several prompts gave so far.
    void end() const {
        if (!all_.empty()) print({{"prompts", all_}});
    }

  private:
    static void print(const nlohmann::json& json) {
        print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
        flush_output();
    }
    bool wanted_, are_several_;
    nlohmann::json all_ = nlohmann::json::array();
};

/// Exports of several prompts go into one folder, which is complete or as it was before.
void stage(std::vector<PromptRun>& runs, const StagedFolder& folder) {
    (void)files_of_export(folder.folder());
    for (PromptRun& run : runs) {
        run.staged = true;
        run.exports.files.folder =
            folder.path() / std::filesystem::path(run.options.exports.folder).filename();
    }
}

void decode_all(const LoadedModel& loaded, const DecodeOptions& options, std::vector<PromptRun>& runs,
                JsonOfRuns& json, std::vector<std::string>& failures) {
    const BeamSettings beams = options.beams.parsed();
    for (std::size_t i = 0; i < runs.size(); ++i) {
        PromptRun& run = runs[i];
        const std::string file = run.options.run.prompt_file;
        if (runs.size() > 1 && !options.json)
            print_out("{}prompt {}\n", i == 0 ? "" : "\n", printable_text(file));
        if (beams.n_beams > 1) {
            const BeamTexts found = search_beams(loaded, std::move(run.spec), beams);
            if (!options.json) print_beams(loaded, found, beams);
            json.add(beams_json(loaded, found), file);
        } else {
            decode(loaded, std::move(run), failures,
                   [&](nlohmann::json made) { json.add(std::move(made), file); });
        }
    }
}

void run_decode(const DecodeOptions& options) {
    std::vector<PromptRun> runs;
    for (const DecodeOptions& one : of_each_prompt(options)) {
        check_is_no_input("--save", one.save, std::vector{one.run.prompt_file, one.run.script});
        runs.push_back(prepared(one));
    }
    note_lanes(runs.front().spec.lanes);
    RunOptions how = options.run;
    how.measures = options.exports.given();
    const LoadedModel loaded = load_for_run(how);
    for (PromptRun& run : runs) count_prompt(run, *loaded.model);
    std::optional<TerminationGuard> guard;  // before the folder that it guards
    std::optional<StagedFolder> folder;
    if (runs.size() > 1 && options.exports.given()) {
        guard.emplace();
        folder.emplace(options.exports.folder);
        stage(runs, *folder);
    }
    JsonOfRuns json(options.json, runs.size() > 1);
    std::vector<std::string> failures;
    try {
        decode_all(loaded, options, runs, json, failures);
        if (folder) publish_exports(*folder, program_name(), command_text());
    } catch (...) {
        json.end();
        throw;
    }
    if (folder) print_note("written to {}\n", printable_text(options.exports.folder));
    json.end();
    // What the other lanes did is printed and exported by now.
    end_with(failures);
}

}  // namespace

void add_decode_command(const CliCommand& program) {
    auto options = std::make_shared<DecodeOptions>();
    const CliCommand command = program.add_command(
        "decode", "decode a prompt with one or more lanes; print, save and export what happens");
    options->run.add_model(command);
    options->run.add_prompt(command, &options->prompt_files);
    options->run.add_text(command);
    options->run.add_lanes(command);
    options->run.add_sampling(command);
    options->beams.add(command);
    options->run.add_backend(command);
    options->exports.add(command);
    command
        .add_option("--stop", options->stop,
                    "answers: they end before this text; repeat for several; '': at the model's end of text "
                    "alone (default: as the prompt's file says, else a line end)")
        .repeated();
    command
        .add_option("--system", options->system,
                    "chat: a system message before the first turn, if the model's chat template has a place "
                    "for it")
        .needs(command.option("--chat"));
    command.add_option("--save", options->save, "trace file to write, FILE.keyhole").some_path();
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] { run_decode(*options); });
}

}  // namespace keyhole
