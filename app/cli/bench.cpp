#include "app/cli/commands.h"
#include "app/cli/number_option.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/module.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/resource_use.h"
#include "engine/bench/bench.h"
#include "engine/bench/papers.h"
#include "engine/model/kv_default.h"
#include "engine/model/kv_sharing.h"

#include <nlohmann/json.hpp>

#include <chrono>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

namespace keyhole {

namespace {

struct Options {
    RunOptions run;
    std::string shape, paper, dtype = "f16";
    PaperScale scale;
    int context = 512;
    int batch = 1;
    int rounds = 5;
    bool instrument = false;
    bool scores = false;
    bool parts = false;
    bool json = false;
    std::string text;  // file for the tokenizer
    int cublas_from = 0;
    bool narrow_prompt = false;
    std::string executor;  // "none": a device that does nothing

    BackendOptions backend_options() const {
        BackendOptions out = run.backend_options();
        out.cublas_from = cublas_from;
        out.narrow_prompt = narrow_prompt;
        out.prove = proof_progress();
        return out;
    }
};

/// The model and backend of a bench.
struct Ground {
    std::shared_ptr<const Model> model;
    std::unique_ptr<Backend> backend;
    std::string backend_text;
    std::unique_ptr<Bandwidth> bandwidth;
    bool on_device = false;
};

constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;

DType dtype_from(const std::string& name) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        if (dtype_name(dtype) == name) return dtype;
    fail(ErrorCode::wrong_use, "--dtype {}: take f32, f16 or bf16", name);
}

/// Throws Error(no_memory) with the numbers if the host has not this many free bytes.
void check_host_memory(const std::string& what, std::int64_t needed, const char* remedy) {
    const std::int64_t free = free_memory_bytes();
    if (free == 0 || needed <= free) return;
    const auto gb = [](std::int64_t bytes) { return 1e-9 * static_cast<double>(bytes); };
    fail(ErrorCode::no_memory, "bench: {} needs {:.1f} GB and {:.1f} GB are free, {:.1f} GB are missing; {}",
         what, gb(needed), gb(free), gb(needed - free), remedy);
}

void open_bandwidth(const Options& options, Ground& ground) {
    ground.on_device = ground.backend->name().starts_with("cuda");
    if (ground.on_device) {
        std::string reason;
        auto executor = open_cuda_executor(cuda_module_path(), options.run.device, reason);
        if (executor == nullptr) fail(ErrorCode::device, "bench: {}", reason);
        ground.bandwidth = device_copy(std::move(executor), kCopyBytes);
    } else {
        ground.bandwidth =
            host_read(options.run.n_threads,
                      std::clamp<std::int64_t>(read_weight_bytes(*ground.model), 1 << 20, kCopyBytes));
    }
}

Ground ground_of_shape(const Options& options, const ModelShape& shape) {
    Ground ground;
    const DType dtype = dtype_from(options.dtype);
    const bool cuda = options.run.backend == "cuda";
    if (!cuda)
        check_host_memory(fmt::format("{} as {}", shape.name, options.dtype),
                          seeded_weight_bytes(shape, dtype),
                          "take --layers N for a part of it, a smaller --dtype or another shape");
    ground.model = make_seeded_model(shape, dtype, 1, cuda ? SeededStorage::unmade : SeededStorage::own);
    std::string notice;
    ground.backend = make_backend(ground.model, options.backend_options(), &notice);
    ground.backend_text = ground.backend->name() + (notice.empty() ? "" : " (" + notice + ")");
    open_bandwidth(options, ground);
    return ground;
}

Ground ground_of(const Options& options) {
    if (!options.shape.empty()) {
        ModelShape shape = shape_of(options.shape);
        if (options.scale.layers > 0)
            shape.config.n_layers = std::min(shape.config.n_layers, options.scale.layers);
        return ground_of_shape(options, shape);
    }
    LoadedModel loaded = load_for_run(options.run);
    Ground ground{std::move(loaded.model), std::move(loaded.backend), std::move(loaded.backend_text), nullptr,
                  false};
    open_bandwidth(options, ground);
    return ground;
}

ContenderSetup setup_of(const std::string& spec, int n_lanes, int context, int n_tokens) {
    const LaneSpec lane = parse_lane_spec(spec);
    if (lane.sharing.kind != KvSharing::Kind::own)
        fail(ErrorCode::wrong_use,
             "bench: lane '{}' shares KV heads otherwise than the model; bench a folder that keyhole convert "
             "makes",
             spec);
    ContenderSetup setup;
    setup.name = spec;
    setup.policies.assign(to_index(n_lanes), resolve(lane.policy, context, n_tokens));
    setup.context = context;
    return setup;
}

/// Adds a contender. Throws if the host has no room for its cache.
Contender& add(std::deque<Contender>& contenders, const Ground& ground, ContenderSetup setup) {
    if (!ground.on_device) {
        const auto of_token = [&](KvType type) {
            return kv_bytes_per_token(ground.model->config(), kv_type_for(type, *ground.model));
        };
        std::int64_t bytes = setup.context * of_token(KvType::f32);  // the prompt, before any eviction
        for (const ResolvedPolicy& policy : setup.policies)
            bytes += std::min<std::int64_t>(policy.stored, std::int64_t{setup.context} + policy.horizon) *
                     of_token(policy.kv_dtype);
        check_host_memory(
            fmt::format("{} x {} at {} tokens", setup.policies.size(), setup.name, setup.context), bytes,
            "take a smaller --batch, --context or budget");
    }
    return contenders.emplace_back(*ground.model, *ground.backend, std::move(setup));
}

nlohmann::json json_of(const BenchLine& line, const BenchLine& first) {
    const SpeedUp up = speed_up(line, first);
    nlohmann::json out = {{"spec", line.name},
                          {"lanes", line.n_lanes},
                          {"context", line.context},
                          {"ms_per_step", line.ms_per_step},
                          {"tokens_per_s", line.tokens_per_s},
                          {"p99_over_p50", line.p99_over_p50},
                          {"bytes_per_step", line.bytes_per_step},
                          {"bytes_per_token", line.bytes_per_step / line.n_lanes},
                          {"kv_bytes", line.kv_bytes},
                          {"allocated_bytes", line.allocated_bytes},
                          {"gb_per_s", line.gb_per_s},
                          {"share_of_bandwidth", line.share_of_bandwidth},
                          {"speed_up", up.measured},
                          {"speed_up_by_bytes", up.by_bytes}};
    if (line.has_parts) {
        const double steps = static_cast<double>(std::max<std::int64_t>(1, line.parts.n_steps));
        out["ms_of_parts"] = {{"linear", 1e3 * line.parts.linear / steps},
                              {"attention", 1e3 * line.parts.attention / steps},
                              {"scoring", 1e3 * line.parts.scoring / steps},
                              {"eviction", 1e3 * line.parts.eviction / steps},
                              {"rest", 1e3 * line.parts.rest / steps}};
    }
    return out;
}

void print_parts(const std::vector<BenchLine>& lines) {
    if (std::none_of(lines.begin(), lines.end(), [](const BenchLine& l) { return l.has_parts; })) return;
    print_out("\n{:<44} {:>9} {:>9} {:>9} {:>9} {:>9}   ms a step, timed part by part\n", "", "linear",
              "attention", "scoring", "eviction", "rest");
    for (const BenchLine& l : lines) {
        const double scale = 1e3 / static_cast<double>(std::max<std::int64_t>(1, l.parts.n_steps));
        print_out("{:<44} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f}\n", l.name, scale * l.parts.linear,
                  scale * l.parts.attention, scale * l.parts.scoring, scale * l.parts.eviction,
                  scale * l.parts.rest);
    }
}

void print_lines(const std::vector<BenchLine>& lines) {
    print_out("{:<44} {:>9} {:>10} {:>8} {:>9} {:>9} {:>8} {:>7} {:>18}\n", "lane", "ms/step", "tokens/s",
              "p99/p50", "KV MB", "MB/token", "GB/s", "share", "x first (by bytes)");
    for (const BenchLine& l : lines) {
        const SpeedUp up = speed_up(l, lines.front());
        print_out(
            "{:<44} {:>9.3f} {:>10.1f} {:>8.2f} {:>9.2f} {:>9.2f} {:>8.2f} {:>6.0f}% {:>8.2f} ({:.2f})\n",
            l.name, l.ms_per_step, l.tokens_per_s, l.p99_over_p50, 1e-6 * static_cast<double>(l.kv_bytes),
            1e-6 * static_cast<double>(l.bytes_per_step) / l.n_lanes, l.gb_per_s, 100 * l.share_of_bandwidth,
            up.measured, up.by_bytes);
    }
}

BenchReport report_on(const Options& options, Ground& ground, std::deque<Contender>& contenders, bool parts) {
    std::vector<Contender*> all;
    for (Contender& c : contenders) all.push_back(&c);
    Progress progress("bench", 1);
    BenchOptions how{options.run.n_tokens, options.rounds, parts,
                     [&](double share) { progress.update(share); }};
    return run_bench(*ground.model, *ground.backend, all, *ground.bandwidth, how);
}

nlohmann::json head_of(const Ground& ground, const BenchReport& report) {
    return {{"model", ground.model->path().string()}, {"backend", ground.backend->name()},
            {"weight_bytes", report.weight_bytes},    {"bandwidth", ground.bandwidth->what()},
            {"bandwidth_gb_per_s", report.bandwidth}, {"cpu_share_of_others", report.share_of_others},
            {"lanes", nlohmann::json::array()}};
}

void print_head(const Ground& ground, const BenchReport& report) {
    print_out(
        "{}, {}\n{:.2f} MB of weights a step; {}: {:.1f} GB/s; other processes took {:.0f} % of the busy "
        "time\n\n",
        ground.model->path().string(), ground.backend_text, 1e-6 * static_cast<double>(report.weight_bytes),
        ground.bandwidth->what(), report.bandwidth, 100 * report.share_of_others);
}

struct TokenizerSpeed {
    std::size_t n_bytes = 0, n_tokens = 0;
    double seconds_per_megabyte = 0;  // median over rounds
};

TokenizerSpeed measure_tokenizer(const Tokenizer& tokenizer, const std::string& file, int n_rounds) {
    const std::string text = read_text_input(file);
    TokenizerSpeed speed{text.size(), 0, 0};
    std::vector<double> seconds;
    for (int round = 0; round < n_rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        speed.n_tokens = tokenizer.encode(text).size();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    speed.seconds_per_megabyte =
        1e6 * median(seconds) / static_cast<double>(std::max<std::size_t>(1, text.size()));
    return speed;
}

/// Benches the lanes as given; on request each also without scores, and instrumented.
void bench_lanes(const Options& options) {
    Ground ground = ground_of(options);
    std::deque<Contender> contenders;
    struct Versus {
        std::size_t with, without;
    };
    std::vector<Versus> scores, rows;
    const std::vector<std::string> specs =
        options.run.lanes.empty() ? std::vector<std::string>{"full"} : options.run.lanes;
    for (const std::string& spec : specs) {
        ContenderSetup plain = setup_of(spec, options.batch, options.context, options.run.n_tokens);
        ContenderSetup without = plain, instrumented = plain;
        plain.keeps = options.scores;
        const std::size_t first = contenders.size();
        add(contenders, ground, std::move(plain));
        if (options.scores) {
            without.name = spec + " -scores";
            without.follows = &contenders.back();
            scores.push_back({contenders.size() - 1, contenders.size()});
            add(contenders, ground, std::move(without));
        }
        if (!options.instrument) continue;
        instrumented.name = spec + " +rows";
        instrumented.wants.attention = instrumented.wants.scores = true;
        rows.push_back({contenders.size(), first});
        add(contenders, ground, std::move(instrumented));
    }
    const BenchReport report = report_on(options, ground, contenders, options.parts);
    nlohmann::json json = head_of(ground, report);
    json["context"] = options.context;
    json["batch"] = options.batch;
    for (const BenchLine& line : report.lines) json["lanes"].push_back(json_of(line, report.lines.front()));
    if (!options.json) {
        print_head(ground, report);
        print_out("context {}, batch {}, {} tokens in {} rounds\n", options.context, options.batch,
                  std::max(1, options.run.n_tokens / options.rounds) * options.rounds, options.rounds);
        print_lines(report.lines);
        print_parts(report.lines);
    }
    for (const Versus& v : scores) {
        const double ratio = report.lines[v.with].ms_per_step / report.lines[v.without].ms_per_step;
        const bool same = contenders[v.with].digests() == contenders[v.without].digests();
        json["scores"].push_back(
            {{"spec", report.lines[v.with].name}, {"time_over_no_scores", ratio}, {"same_bits", same}});
        if (!options.json)
            print_out("{}: scoring, choosing and evicting take {:.1f} % over no scores; same bits: {}\n",
                      report.lines[v.with].name, 100 * (ratio - 1), same ? "yes" : "NO");
    }
    if (!options.text.empty()) {
        const TokenizerSpeed speed =
            measure_tokenizer(ground.model->tokenizer(), options.text, options.rounds);
        json["tokenizer"] = {{"bytes", speed.n_bytes},
                             {"tokens", speed.n_tokens},
                             {"seconds_per_megabyte", speed.seconds_per_megabyte}};
        if (!options.json)
            print_out("tokenizer: {:.2f} MB to {} tokens; 1 MB takes {:.1f} % of a second\n",
                      1e-6 * static_cast<double>(speed.n_bytes), speed.n_tokens,
                      100 * speed.seconds_per_megabyte);
    }
    for (const Versus& v : rows) {
        const double ratio = report.lines[v.with].ms_per_step / report.lines[v.without].ms_per_step;
        json["rows"].push_back({{"spec", report.lines[v.without].name}, {"time_over_no_rows", ratio}});
        if (!options.json)
            print_out("{}: rows of attention and scores of all heads cost {:.1f} %\n",
                      report.lines[v.without].name, 100 * (ratio - 1));
    }
    if (options.json) print_out("{}\n", json.dump(2));
}

/// The result of one table line, and the bytes of its weights.
struct PaperResult {
    BenchLine line;
    std::int64_t weight_bytes = 0;
};

/// Returns how many lanes fit into 12 GB beside the weights, counted as in MLKV's figure 3.
std::int64_t largest_batch(const PaperResult& result) {
    const double left = 12e9 - static_cast<double>(result.weight_bytes);
    const BenchLine& line = result.line;
    return static_cast<std::int64_t>(left / (line.allocated_bytes / line.n_lanes));
}

void print_group(const Options& options, const PaperRun& run, const PaperGroup& group,
                 const std::vector<std::optional<PaperResult>>& lines,
                 const std::vector<std::string>& reasons) {
    print_out("\n{:<34} {:>10} {:>10} {:>9} {:>9} {:>9} {:>8} {:>18}\n", group.title, "paper", "tokens/s",
              "ms/step", "KV MB", "GB/s", "share", "x first (by bytes)");
    const std::optional<PaperResult>& first = lines.front();
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const PaperLine& line = group.lines[i];
        if (!lines[i]) {
            print_out("{:<34} {:>10} {}\n", line.label, line.printed, reasons[i]);
            continue;
        }
        const BenchLine& l = lines[i]->line;
        const SpeedUp up = first ? speed_up(l, first->line) : SpeedUp{NAN, NAN};
        print_out("{:<34} {:>10} {:>10.1f} {:>9.3f} {:>9.1f} {:>9.2f} {:>7.0f}% {:>8.2f} ({:.2f})",
                  line.label, line.printed, l.tokens_per_s, l.ms_per_step,
                  1e-6 * static_cast<double>(l.kv_bytes), l.gb_per_s, 100 * l.share_of_bandwidth, up.measured,
                  up.by_bytes);
        if (run.name == "mlkv-figure3" && options.scale.tokens == 1 && options.scale.layers == 0)
            print_out("   {} lanes in 12 GB", largest_batch(*lines[i]));
        print_out("\n");
    }
    if (!run.parts) return;
    std::vector<BenchLine> there;
    for (const auto& line : lines)
        if (line) there.push_back(line->line);
    print_parts(there);
}

/// Benches one group of a paper's table. A line that does not fit gives its reason instead.
nlohmann::json bench_group(const Options& options, const PaperRun& run, const PaperGroup& group,
                           const ModelShape& shape, std::optional<Ground>& ground, KvShape& there) {
    std::vector<std::optional<PaperResult>> lines(group.lines.size());
    std::vector<std::string> reasons(group.lines.size());
    nlohmann::json json = {{"title", group.title}, {"lines", nlohmann::json::array()}};
    // Runs the lines of one model in turn, so that their ratios are comparable.
    for (std::size_t begin = 0; begin < group.lines.size();) {
        std::size_t end = begin + 1;
        while (end < group.lines.size() && group.lines[end].n_kv_heads == group.lines[begin].n_kv_heads &&
               group.lines[end].n_kv_layers == group.lines[begin].n_kv_layers)
            ++end;
        std::deque<Contender> contenders;
        std::vector<std::size_t> line_of;
        for (std::size_t i = begin; i < end; ++i) try {
                const PaperLine& line = group.lines[i];
                const ModelShape wanted = with_kv_heads(shape, line);
                if (!ground || there != kv_shape(wanted.config)) {
                    ground.reset();
                    ground = ground_of_shape(options, wanted);
                    there = kv_shape(wanted.config);
                    if (!options.json)
                        print_out("{}, {}\n", ground->model->path().string(), ground->backend_text);
                }
                add(contenders, *ground,
                    setup_of(line.lane, line.n_lanes, line.context, options.run.n_tokens));
                line_of.push_back(i);
            } catch (const Error& error) {
                if (error.code() != ErrorCode::no_memory && error.code() != ErrorCode::unsupported) throw;
                reasons[i] = error.what();
            }
        if (!contenders.empty()) {
            const BenchReport report = report_on(options, *ground, contenders, run.parts || options.parts);
            for (std::size_t i = 0; i < line_of.size(); ++i)
                lines[line_of[i]] = PaperResult{report.lines[i], report.weight_bytes};
        }
        begin = end;
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
        nlohmann::json of_line = lines[i]
                                     ? json_of(lines[i]->line, lines[0] ? lines[0]->line : lines[i]->line)
                                     : nlohmann::json{{"reason", reasons[i]}};
        of_line["label"] = group.lines[i].label;
        of_line["paper"] = group.lines[i].printed;
        json["lines"].push_back(std::move(of_line));
    }
    if (!options.json && ground) print_group(options, run, group, lines, reasons);
    if (!options.json && !ground)
        for (std::size_t i = 0; i < lines.size(); ++i)
            print_out("{}: {}\n", group.lines[i].label, reasons[i]);
    return json;
}

void bench_paper(const Options& options) {
    PaperRun run = paper_run(options.paper);
    ModelShape shape = shape_of(options.shape.empty() ? run.shape : options.shape);
    std::string scaled = scale_down(run, shape, options.scale);
    if (!options.shape.empty() && options.shape != run.shape)
        scaled =
            fmt::format("{} instead of {}{}{}", options.shape, run.shape, scaled.empty() ? "" : ", ", scaled);
    nlohmann::json json = {{"paper", run.name},
                           {"source", run.source},
                           {"unit", run.unit},
                           {"scaled", scaled},
                           {"shape", shape.name},
                           {"dtype", options.dtype},
                           {"groups", nlohmann::json::array()}};
    if (!options.json)
        print_out(
            "{}\nThe paper's column: {}. Here decoding alone is timed, in the middle of the paper's "
            "run.\nScaled down: {}\n",
            run.source, run.unit, scaled.empty() ? "nothing" : scaled);
    std::optional<Ground> ground;
    KvShape there;
    for (const PaperGroup& group : run.groups)
        json["groups"].push_back(bench_group(options, run, group, shape, ground, there));
    if (options.json) print_out("{}\n", json.dump(2));
}

/// Measures what the host does for a step on CUDA, with an executor that does nothing: time, launches, and
/// lists that a device would make graphs of.
void bench_host_part(const Options& options) {
    if (options.shape.empty() || !options.paper.empty())
        fail(ErrorCode::wrong_use, "bench: --executor none needs --shape, and no --paper");
    ModelShape shape = shape_of(options.shape);
    if (options.scale.layers > 0)
        shape.config.n_layers = std::min(shape.config.n_layers, options.scale.layers);
    const auto model = make_seeded_model(shape, dtype_from(options.dtype), 1, SeededStorage::unmade);
    const int n_layers = shape.config.n_layers;
    nlohmann::json json = {{"model", model->path().string()},
                           {"context", options.context},
                           {"batch", options.batch},
                           {"lanes", nlohmann::json::array()}};
    if (!options.json)
        print_out(
            "{}, {}\ncontext {}, batch {}, {} rows; nothing is evicted, since nothing is computed\n"
            "{:<44} {:>12} {:>9} {:>14} {:>9} {:>9} {:>16}\n",
            model->path().string(), "the host's part alone", options.context, options.batch,
            options.run.n_tokens, "lane", "host ms/step", "p99/p50", "launches/layer", "others", "lists",
            "prompt launches");
    const std::vector<std::string> specs =
        options.run.lanes.empty() ? std::vector<std::string>{"full"} : options.run.lanes;
    for (const std::string& spec : specs)
        for (const bool rows : {false, true}) {
            if (rows && !options.instrument) continue;
            const std::shared_ptr<cuda::Executor> executor = cuda::make_idle_executor();
            cuda::ProductOptions products;
            if (options.cublas_from > 0) products.cublas_from = options.cublas_from;
            products.narrow_prompt = options.narrow_prompt;
            const auto backend = make_cuda_backend(model, executor, products);
            ContenderSetup setup = setup_of(spec, options.batch, options.context, options.run.n_tokens);
            if (rows) setup.name += " +rows";
            setup.wants.attention = setup.wants.scores = rows;
            const std::string name = setup.name;
            const std::int64_t before_prompt = executor->counts().launches;
            Contender contender(*model, *backend, std::move(setup));
            const cuda::LaunchCounts prompt = executor->counts();
            contender.decode(2);  // buffers grow in the first rows
            contender.restart();
            const cuda::LaunchCounts before = executor->counts();
            contender.decode(options.run.n_tokens);
            const cuda::LaunchCounts after = executor->counts();
            std::vector<double> ms = contender.step_ms;
            std::sort(ms.begin(), ms.end());
            const double middle = median(ms), n_rows = static_cast<double>(options.run.n_tokens),
                         p99 = ms[to_index(static_cast<int>(0.99 * static_cast<double>(ms.size() - 1)))];
            const double launches = static_cast<double>(after.launches - before.launches) / n_rows;
            // What every layer launches, and what the row launches besides.
            const double of_layer = std::floor(launches / n_layers), others = launches - of_layer * n_layers;
            const std::int64_t of_prompt = prompt.launches - before_prompt,
                               lists = after.new_lists - before.new_lists;
            json["lanes"].push_back({{"spec", name},
                                     {"host_ms_per_step", middle},
                                     {"p99_over_p50", p99 / middle},
                                     {"launches_per_step", launches},
                                     {"launches_per_layer", of_layer},
                                     {"new_lists", lists},
                                     {"prompt_launches", of_prompt}});
            if (!options.json)
                print_out("{:<44} {:>12.4f} {:>9.2f} {:>14.0f} {:>9.0f} {:>9} {:>16}\n", name, middle,
                          p99 / middle, of_layer, others, lists, of_prompt);
        }
    if (options.json) print_out("{}\n", json.dump(2));
}

std::string joined(const std::vector<std::string_view>& names) {
    std::string text;
    for (const std::string_view name : names) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    return text;
}

}  // namespace

void add_bench_command(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "bench",
        "tokens per second, bytes per token and the share of what memory gives, in interleaved rounds");
    options->run.add_model(*command);
    command->add_option("--shape", options->shape,
                        "instead of a model: random weights of the shape of " + joined(shape_names()));
    command->add_option("--dtype", options->dtype, "of random weights")
        ->check(CLI::IsMember({"f32", "f16", "bf16"}))
        ->capture_default_str();
    command->add_option("--paper", options->paper,
                        "a paper's table, beside its printed numbers: " + joined(paper_names()));
    command
        ->add_option("--scale", options->scale.tokens, "with --paper: contexts and budgets divided by this")
        ->transform(number_in(1, 1 << 20));
    command->add_option("--scale-batch", options->scale.lanes, "with --paper: batches divided by this")
        ->transform(number_in(1, 1 << 20));
    command->add_option("--layers", options->scale.layers, "with --shape or --paper: only so many layers")
        ->transform(number_in(1, 1 << 20));
    options->run.add_backend(*command);
    options->run.add_lanes(*command);
    command->add_option("--context", options->context, "prompt tokens")
        ->transform(number_in(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--tokens", options->run.n_tokens, "tokens to decode, over all rounds")
        ->transform(number_in(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--batch", options->batch, "lanes of each policy")
        ->transform(number_in(1, 4096))
        ->capture_default_str();
    command->add_option("--rounds", options->rounds, "interleaved rounds")
        ->transform(number_in(1, 1000))
        ->capture_default_str();
    command->add_flag("--instrument", options->instrument,
                      "each lane also with attention and score rows of all heads");
    command->add_flag(
        "--scores", options->scores,
        "each lane also without any scores, losing the same tokens: what choosing and evicting costs");
    command->add_flag(
        "--parts", options->parts,
        "also the time of linear layers, attention, scoring and eviction, in steps of their own");
    command
        ->add_option("--cublas-from", options->cublas_from,
                     "with --shape on CUDA: lanes from which cuBLAS takes the products (default: 16)")
        ->transform(number_in(1, 1 << 20));
    command->add_flag("--narrow-prompt", options->narrow_prompt,
                      "with --shape on CUDA: prompts in the type of the weights, on tensor cores");
    command
        ->add_option("--executor", options->executor,
                     "none: with --shape, the host's part of a step on CUDA alone; needs no device")
        ->check(CLI::IsMember({"none"}));
    command->add_option("--text", options->text, "a file that the tokenizer cuts, for its speed")
        ->check(CLI::ExistingFile);
    command->add_flag("--json", options->json, "machine-readable");
    command->callback([options] {
        if (!options->executor.empty())
            bench_host_part(*options);
        else if (options->paper.empty())
            bench_lanes(*options);
        else
            bench_paper(*options);
    });
}

}  // namespace keyhole
