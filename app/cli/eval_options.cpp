#include "app/cli/eval_options.h"

#include "app/base/assets.h"
#include "app/base/command_text.h"
#include "app/base/saved_policies.h"
#include "app/cli/model_option.h"
#include "app/cli/output.h"
#include "app/study/bounds.h"
#include "app/study/job_file.h"
#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"
#include "engine/base/standard_input.h"
#include "engine/eval/shard.h"
#include "engine/policy/lane_names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <span>

namespace keyhole {

namespace {

/// The most values of a head that an oracle gets unasked: 512 rows of 1,024 tokens, 100 MB with 48 KV heads.
constexpr std::int64_t kMostAhead = 512 * 1024;

/// Parses `512` or `100..900`, within the context.
DistanceRange parse_distance(std::string_view text, int n_context) {
    if (text.empty()) return {};
    const std::size_t dots = text.find("..");
    const auto low = number_from_text<int>(text.substr(0, dots), 0);
    const auto high = dots == std::string_view::npos ? low : number_from_text<int>(text.substr(dots + 2), 0);
    if (!low || !high || *high < std::max(*low, 1))
        fail(ErrorCode::wrong_use, "--distance '{}' is no number of tokens; write 512 or 100..900",
             shown_text(text));
    if (*high >= n_context)
        fail(ErrorCode::wrong_use,
             "--distance {}: {} tokens do not fit between what is asked for and the answer in --context {}; "
             "give at most {}, or a larger --context",
             text, *high, n_context, n_context - 1);
    return {*low, *high};
}

/// Returns a spec as this version writes it; "" for another text.
std::string spec_or_nothing(const std::string& text) {
    try {
        return format_lane_spec(parse_named_lane(with_saved_policy(text)).spec);
    } catch (const Error&) {
        return "";
    }
}

}  // namespace

void EvalOptions::add(const CliCommand& command) {
    owner = command;
    run.add_model(command);
    run.add_lanes(command);
    run.add_backend(command);
    run.measures = true;
    command.add_option(
        "--text", text,
        "file (- for standard input) whose perplexity is measured; with --task, the narrative that questions "
        "stand in");
    command.add_option("--task", task,
                       "recall tasks, a comma list: needle, fact, needles, latest, dialogue, list, passage; "
                       "recall is all but passage; ruler is RULER's thirteen kinds, or name one, such as "
                       "ruler-tracking; all is recall and passage; instructions stand at the start and are "
                       "to be followed at the end");
    command
        .add_option("-c,--context", context,
                    "tokens of a window, or of prompt and answer (default: the model's, at most 1024)")
        .within(2, 1 << 24);
    command
        .add_option("--prefill", n_prefill,
                    "text: tokens of a window that are its prompt and are not scored (default: half)")
        .within(1, 1 << 24);
    command
        .add_option("--samples", n_samples,
                    "questions of each task (default: 500), or most windows of the text or questions of the "
                    "data (default: all)")
        .within(1, 1 << 24);
    command.add_option(
        "--distance", distance,
        "tasks: tokens between what is asked for and the answer, 512 or 100..900 (default: any)");
    command
        .add_option("--ask", ask,
                    "tasks: `question` asks for the value; `statement` begins the statement once more, which "
                    "every language model completes")
        .one_of({"question", "statement"})
        .shows_default();
    command
        .add_option(
            "--ask-when", ask_when,
            "`after`: lanes evict before they see the question, which is then fed to what they kept; "
            "`both` asks both ways; tasks, and data with `context`. `decoding`: tasks; lanes read the "
            "text token by token, as what they wrote, so that the budget works in every row")
        .one_of({"before", "after", "both", "decoding"})
        .shows_default();
    command.add_flag("--chat", run.chat,
                     "tasks and data: ask as a user's turn, in the form of the model's chat template, for "
                     "models that were trained on instructions");
    command.add_option("-s,--seed", seed, "seed of the questions").natural().shows_default();
    command.add_option("--passages", passages,
                       "task passage: file of sections with Question: and Answer: lines");
    data.add(command);
}

void EvalOptions::add_bounds(const CliCommand& command) {
    n_bounds = kBoundSeeds;
    bounds = command
                 .add_option("--bounds", n_bounds,
                             "the floor and the ceiling beside all lanes with a budget: so many seeds of "
                             "`random`, and `oracle`, except with --data; 0: neither")
                 .within(0, 64)
                 .shows_default();
}

void EvalOptions::add_table(const CliCommand& command) {
    command.add_option(
        "--against", against,
        "the lane that differences refer to: its name, its spec, or its number from 1 (default: "
        "the first)");
    command
        .add_option("--sort", sort,
                    "order of printed tables: most `right` first, least `nats`, or fewest `bytes` (default: "
                    "as given)")
        .one_of({"right", "nats", "bytes"});
}

void EvalOptions::add_shard(const CliCommand& command) {
    command.add_option("--shard", shard,
                       "I/N: answer only every N-th question from the I-th on, for N machines; then `keyhole "
                       "merge` joins their folders");
    command
        .add_option(
            "--job", job,
            "answer nothing; write a job file into --out instead, which runs --shards of this command, "
            "joins them and prints the results: an array of `slurm`, or GNU `parallel` here or over ssh")
        .one_of({"slurm", "parallel"});
    command.add_option("--shards", n_shards, "--job: how many")
        .within(1, kMostShards)
        .shows_default()
        .needs(command.option("--job"));
}

/// Returns the value of an option as a machine without the saved policies of this one reads it.
std::string EvalOptions::portable_value(std::string_view option, const std::string& value) const {
    constexpr std::array<std::string_view, 6> kTexts = {"--data",     "--few-shot",      "--text",
                                                        "--passages", "--held-out-text", "--held-out-data"};
    if (value == kStandardInput && std::ranges::find(kTexts, option) != kTexts.end())
        fail(
            ErrorCode::wrong_use,
            "--job: {} - reads standard input, which the shards do not have; write the text into a file, and "
            "name that",
            option);
    if (option == "-l" || option == "--lane") return with_saved_policy(value);
    const std::vector<std::string> named = names();
    const bool is_spec = option == "--against" && std::ranges::find(named, value) == named.end();
    return is_spec ? with_saved_policy(value) : value;
}

bool EvalOptions::writes_job(const std::string& out) const {
    if (job.empty()) return false;
    if (out.empty() || !shard.empty())
        fail(ErrorCode::wrong_use,
             "--job writes a file into --out and numbers the shards itself; give --out FOLDER, and leave "
             "--shard out");
    keep_chosen_model(run);
    const std::string command = command_text(
        [&](std::string_view option, const std::string& value) { return portable_value(option, value); });
    make_folder(out, "the job file");
    std::error_code ignored;
    const std::filesystem::path file = std::filesystem::path(out) / "job.sh";
    if (std::filesystem::exists(file, ignored) && !is_job_text(read_text_file(file)))
        fail(ErrorCode::wrong_use,
             "--job would replace {}, which Keyhole did not write; move it away, or name another --out",
             file.string());
    write_text_file(file,
                    job_text({job == "slurm" ? JobKind::slurm : JobKind::parallel,
                              std::filesystem::read_symlink("/proc/self/exe", ignored).string(),
                              std::filesystem::current_path(ignored).string(), command, out, n_shards}));
    print_out("{}, joined in {}; start them with: sh {}\n", counted(n_shards, "shard"), printable_text(out),
              shell_word(file.string()));
    return true;
}

std::size_t EvalOptions::against_index(std::span<const std::string> labels,
                                       std::span<const LaneSpec> specs) const {
    if (against.empty()) return 0;
    std::string known;
    for (std::size_t i = 0; i < labels.size(); ++i) {
        if (labels[i] == against) return i;
        if (known.size() < 200) known += (i == 0 ? "" : ", ") + labels[i];
    }
    const auto number = number_from_text<int>(against, 1);
    if (number && to_index(*number) <= labels.size()) return to_index(*number) - 1;
    const std::string spec = against.find(':') == std::string::npos && number ? "" : spec_or_nothing(against);
    for (std::size_t i = 0; i < specs.size(); ++i)
        if (!spec.empty() && format_lane_spec(specs[i]) == spec) return i;
    fail(ErrorCode::wrong_use, "--against: there is no lane '{}'; lanes are {}", shown_text(against), known);
}

int EvalOptions::context_of(const Model& model) const {
    if (context > 0) return context;
    return data.files.empty() ? std::min(model.config().n_ctx, 1024) : model.config().n_ctx;
}

std::vector<int> EvalOptions::text_lengths(const QuestionSet& set, int n_tokens) const {
    if (data.files.empty()) return {n_tokens};
    std::vector<int> lengths;
    for (int i = 0; i < set.n_questions; ++i) lengths.push_back(static_cast<int>(set.make(i).prompt.size()));
    std::sort(lengths.begin(), lengths.end());
    return lengths;
}

int EvalOptions::prompt_of(const QuestionSet& set, int n_tokens) const {
    if (ask_when == "decoding") return 1;
    if (set.is_task) return n_tokens;
    return n_prefill > 0 ? n_prefill : n_tokens / 2;
}

bool EvalOptions::may_evict(const Model& model, const QuestionSet& set, std::span<const int> lengths,
                            const LaneSpec& lane) const {
    const int longest = lengths.empty() ? 0 : lengths.back();
    return keyhole::may_evict(model, lane, prompt_of(set, longest), longest);
}

KvBytes EvalOptions::kv_bytes_of(const Model& model, const Backend& backend, const QuestionSet& set,
                                 std::span<const int> lengths, const LaneSpec& lane) const {
    KvBytes bytes, one;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        if (i == 0 || lengths[i] != lengths[i - 1])
            one = keyhole::kv_bytes_of(model, backend, lane, prompt_of(set, lengths[i]), lengths[i]);
        bytes.after += one.after;
        bytes.most = std::max(bytes.most, one.most);
    }
    bytes.after /= static_cast<double>(lengths.size());
    return bytes;
}

nlohmann::json EvalOptions::about_json(const Model& model) const {
    nlohmann::json json = {{"context", context_of(model)}};
    if (n_samples > 0) json["most_samples"] = n_samples;
    if (!task.empty()) {
        json["task"] = task;
        json["ask"] = ask;
        json["ask_when"] = ask_when;
        json["seed"] = seed;
        if (!distance.empty()) json["distance"] = distance;
    }
    if (run.chat) json["chat"] = true;
    if (!text.empty()) json["text"] = text;
    if (!data.files.empty()) json["data"] = data.files;
    return json;
}

std::vector<LaneSpec> EvalOptions::lanes() const {
    std::vector<LaneSpec> all = typed_lanes();
    if (n_bounds == 0) return all;
    const std::vector<LaneSpec> beside = bound_lanes(all, n_bounds, has_oracle());
    all.insert(all.end(), beside.begin(), beside.end());
    return all;
}

bool EvalOptions::has_oracle() const {
    // Questions of data are answered in the lanes' own words, which are not known ahead.
    return data.files.empty() && (bounds.is_given() || tokens_ahead() <= kMostAhead);
}

/// Returns the number of attention values of a head that an oracle knows ahead.
std::int64_t EvalOptions::tokens_ahead() const {
    const std::int64_t n = context > 0 ? context : 1024;
    if (task.empty()) return n * (n_prefill > 0 ? std::max<std::int64_t>(n - n_prefill, 0) : n / 2);
    return ask_when == "decoding" ? n * n : 0;
}

void EvalOptions::note_bounds() const {
    const std::vector<LaneSpec> typed = typed_lanes();
    if (n_bounds > 0 && data.files.empty() && !has_oracle() && std::ranges::any_of(typed, has_floor))
        print_note(
            "keyhole: no oracle stands beside the lanes: on texts this long it takes much memory; "
            "--bounds {} adds it\n",
            n_bounds);
}

std::vector<LaneSpec> EvalOptions::typed_lanes() const {
    std::vector<LaneSpec> specs;
    for (const std::string& lane : run.lanes) specs.push_back(parse_named_lane(lane).spec);
    if (specs.empty()) specs.push_back(parse_lane_spec("full"));
    return specs;
}

std::vector<std::string> EvalOptions::names() const {
    std::vector<std::string> names;
    for (const std::string& lane : run.lanes) {
        const std::string name = printable_text(parse_named_lane(lane).name);
        if (!name.empty() && std::find(names.begin(), names.end(), name) != names.end())
            fail(ErrorCode::wrong_use, "--lane: two lanes are named '{}'; give each a name of its own", name);
        names.push_back(name);
    }
    return names;
}

std::string EvalOptions::names_text() const {
    const std::vector<std::string> given = names();
    std::string lines;
    for (std::size_t i = 0; i < given.size(); ++i)
        if (!given[i].empty())
            lines +=
                fmt::format("{} = {}\n", given[i], format_lane_spec(parse_named_lane(run.lanes[i]).spec));
    return lines;
}

std::vector<std::string> EvalOptions::labels() const {
    std::vector<std::string> texts = names();
    for (std::size_t i = 0; i < texts.size(); ++i)
        if (texts[i].empty()) texts[i] = printable_text(run.lanes[i]);
    if (texts.empty()) texts.push_back("full");
    const std::vector<LaneSpec> all = lanes();
    for (std::size_t i = texts.size(); i < all.size(); ++i) texts.push_back(format_lane_spec(all[i]));
    return texts;
}

std::vector<AskWhen> EvalOptions::whens() const {
    if (ask_when == "both") return {AskWhen::before, AskWhen::after};
    if (ask_when == "decoding") return {AskWhen::decoding};
    return {ask_when == "after" ? AskWhen::after : AskWhen::before};
}

void EvalOptions::check_budgets(std::span<const LaneSpec> lanes) const {
    if (ask_when != "decoding") return;
    for (const LaneSpec& lane : lanes)
        if (lane.policy.budget.unit == Amount::Unit::percent)
            fail(ErrorCode::wrong_use,
                 "lane '{}': with --ask-when decoding the prompt is one token, of which no budget can be a "
                 "share; give it in tokens, such as budget=64",
                 format_lane_spec(lane));
}

/// Refuses --seed where nothing is drawn. why: what is done instead.
void EvalOptions::check_draws(std::string_view why) const {
    if (!always_draws && owner && owner.given({"--seed"}))
        fail(ErrorCode::wrong_use, "--seed draws the questions of tasks, and {}; leave it out", why);
}

/// Refuses options that no question of the data uses.
void EvalOptions::check_used(std::span<const QuestionSet> of_data) const {
    check_draws("data are asked in their order");
    const auto is_own = [](const QuestionSet& set) { return set.in_own_words; };
    if (sort == "nats" && std::ranges::any_of(of_data, is_own))
        fail(ErrorCode::wrong_use,
             "--sort nats: answers in own words have no nats that compare; sort by `right` or `bytes`");
    if (!owner || std::ranges::any_of(of_data, is_own)) return;
    if (const CliOption one = owner.given({"--answer-tokens", "--until", "--stems", "--beams",
                                           "--beam-scores", "--length-penalty", "--early-stopping",
                                           "--repetition-penalty", "--no-repeat-ngram", "--min-tokens"}))
        fail(ErrorCode::wrong_use,
             "{} is for answers in own words, and the data have choices or targets; leave "
             "it out",
             one.name());
}

QuestionSet EvalOptions::one_set(const std::shared_ptr<const Model>& model, std::string_view command) const {
    std::vector<QuestionSet> sets = questions(model);
    if (sets.size() != 1)
        fail(ErrorCode::wrong_use, "{} asks one set of questions; give one task, or one file of data",
             command);
    return std::move(sets.front());
}

namespace {

/// Files of two folders may have one name; tables, pictures and answers need two.
void name_apart(std::span<QuestionSet> sets) {
    std::set<std::string> names;
    for (QuestionSet& set : sets) {
        const std::string stem = set.name;
        for (int n = 2; !names.insert(set.name).second; ++n) set.name = fmt::format("{}-{}", stem, n);
    }
}

}  // namespace

std::vector<QuestionSet> EvalOptions::questions(const std::shared_ptr<const Model>& model) const {
    const int n_context = context_of(*model);
    std::vector<QuestionSet> sets;
    if (!data.files.empty()) {
        if (!task.empty() || !text.empty() || n_prefill > 0 || !distance.empty() || !passages.empty() ||
            ask != "question")
            fail(ErrorCode::wrong_use,
                 "--data asks the questions of your files; leave out --task, --text, --prefill, --distance, "
                 "--passages and --ask");
        if (ask_when == "decoding")
            fail(ErrorCode::wrong_use, "--ask-when decoding is for tasks; give --task NAME, not --data");
        for (const std::string& file : data.files)
            for (const AskWhen when : whens()) {
                DataOptions options = data.options(file, n_context, n_samples);
                options.ask_when = when;
                options.chat = run.chat;
                sets.push_back(data_questions(model, options));
            }
        name_apart(sets);
        check_used(sets);
        return sets;
    }
    data.check_unused();
    if (task.empty()) {
        check_draws("a text is read from its beginning");
        if (text.empty())
            fail(
                ErrorCode::wrong_use,
                "nothing to measure; give --text FILE for perplexity, --task NAME for recall, or --data FILE "
                "for your own questions");
        if (!distance.empty() || !passages.empty() || ask != "question" || ask_when != "before" || run.chat)
            fail(ErrorCode::wrong_use,
                 "--distance, --passages, --ask, --ask-when and --chat are for tasks; give --task NAME with "
                 "them");
        sets.push_back(text_windows(model, read_input_text(text), n_context,
                                    n_prefill > 0 ? n_prefill : n_context / 2, n_samples));
        return sets;
    }
    if (run.chat && ask_when == "decoding")
        fail(ErrorCode::wrong_use, "--ask-when decoding reads a text of the model's own, not a --chat");
    if (n_prefill > 0)
        fail(ErrorCode::wrong_use, "--prefill is for perplexity; a task's whole prompt is processed at once");
    const std::vector<TaskKind> kinds = parse_tasks(task);
    const std::filesystem::path folder = find_assets() / "tasks";
    const auto texts = std::make_shared<const TaskTexts>(
        folder / "words.json", read_input_text(text.empty() ? (folder / "narrative.txt").string() : text),
        read_input_text(passages.empty() ? (folder / "passages.txt").string() : passages),
        ask == "statement" ? AskBy::statement : AskBy::question);
    TaskOptions options;
    options.n_questions = n_samples > 0 ? n_samples : 500;
    options.seed = seed;
    options.context = n_context;
    options.distance = parse_distance(distance, n_context);
    options.chat = run.chat;
    for (const TaskKind kind : kinds)
        for (const AskWhen when : whens()) {
            options.ask_when = when;
            sets.push_back(task_questions(model, texts, kind, options));
        }
    return sets;
}

}  // namespace keyhole
