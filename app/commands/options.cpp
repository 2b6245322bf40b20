#include "app/commands/options.h"

#include "app/commands/assets.h"
#include "app/commands/commands.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace keyhole {

void RunOptions::add_model(CLI::App& command) {
    command.add_option("--model", model, "Hugging Face folder of the model (default: the demo model)");
}

void RunOptions::add_backend(CLI::App& command) {
    command.add_option("--backend", backend, "auto, cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    command.add_option("--threads", n_threads, "CPU threads (default: all cores)")
        ->check(CLI::Range(0, 1024));
    command.add_option("--device", device, "CUDA device by index (default: 0)")->check(CLI::Range(0, 1024));
}

void RunOptions::add_prompt(CLI::App& command) {
    auto* text =
        command.add_option("--prompt", prompt, "text to start from; an empty one is the model's BOS token");
    prompt_option = text;
    command.add_option("--prompt-file", prompt_file, "file with the text to start from")->excludes(text);
}

void RunOptions::add_lanes(CLI::App& command) {
    command
        .add_option(
            "--lane", lanes,
            "lane spec, preset[:key=value,...]; repeat for lanes side by side, the first is the reference")
        ->expected(1)
        ->take_all();
}

void RunOptions::add_sampling(CLI::App& command) {
    command.add_option("--tokens", n_tokens, "tokens to generate")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    auto* follow_flag = command.add_flag("--follow", follow, "feed every lane the first lane's token");
    command.add_flag("--free", free, "each lane goes on with its own token (default)")->excludes(follow_flag);
    command.add_flag("--ignore-eos", ignore_eos, "go on after the end-of-text token");
    command.add_option("--temperature", sampling.temperature, "0 is greedy")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    command.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens, 0: all")
        ->check(CLI::NonNegativeNumber);
    command.add_option("--top-p", sampling.top_p, "sample from the likeliest tokens that hold this mass")
        ->check(CLI::Range(0.0, 1.0));
    command.add_option("--seed", seed, "of the sampling")->capture_default_str();
    command.add_option(
        "--script", script,
        "commands to apply while it runs: a line is `+N command` (after N tokens) or `ROW command`");
}

RunSpec RunOptions::run_spec() const {
    RunSpec spec;
    spec.prompt = prompt_file.empty() ? prompt : read_prompt_file(prompt_file);
    if (prompt_file.empty() && (prompt_option == nullptr || prompt_option->count() == 0))
        fail(ErrorCode::wrong_use, "there is no prompt; give --prompt TEXT or --prompt-file FILE");
    for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
    if (spec.lanes.empty()) spec.lanes.push_back(parse_lane_spec("full"));
    spec.follow = follow;
    spec.ignore_eos = ignore_eos;
    spec.n_generate = n_tokens;
    spec.sampling = sampling;
    spec.seed = seed;
    return spec;
}

BackendOptions RunOptions::backend_options() const {
    BackendOptions options;
    options.choice = backend == "cpu"    ? BackendChoice::cpu
                     : backend == "cuda" ? BackendChoice::cuda
                                         : BackendChoice::automatic;
    options.n_threads = n_threads;
    options.device = device;
    return options;
}

std::string demo_model_folder() {
    const std::filesystem::path folder = find_assets() / "models" / "keyhole-base";
    std::error_code ignored;
    return std::filesystem::exists(folder / "config.json", ignored) ? folder.string() : std::string();
}

std::string read_prompt_file(const std::string& file) {
    std::string text = read_text_input(file);
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return text;
}

/// `rewind +N` as `rewind ROW`.
static std::string with_row(std::string command, int n_prompt) {
    constexpr std::string_view kRelative = "rewind +";
    if (!command.starts_with(kRelative)) return command;
    const auto row = parse_command("rewind " + command.substr(kRelative.size()));
    return fmt::format("rewind {}", n_prompt - 1 + std::get<Rewind>(row).row);
}

/// The row at which a script is after a command.
static int row_after(const LoggedCommand& logged, int n_prompt) {
    if (const auto* rewind = std::get_if<Rewind>(&logged.command)) return rewind->row;
    // How far a branch went shows when the script runs.
    return std::holds_alternative<GoToBranch>(logged.command) ? n_prompt - 1 : logged.row;
}

std::vector<LoggedCommand> read_script(const std::string& file, int n_prompt) {
    std::ifstream in(file);
    if (!in) fail(ErrorCode::bad_file, "cannot open the script {}; check the path", file);
    std::vector<LoggedCommand> commands;
    int earliest = n_prompt - 1;
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
        const std::size_t begin = line.find_first_not_of(" \t\r");
        if (begin == std::string::npos || line[begin] == '#') continue;
        line = line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
        const std::size_t blank = line.find_first_of(" \t");
        const std::string stamp = line.substr(0, blank);
        try {
            std::size_t used = 0;
            const bool relative = stamp.front() == '+';
            const int value = std::stoi(relative ? stamp.substr(1) : stamp, &used);
            if (used + (relative ? 1 : 0) != stamp.size() || blank == std::string::npos)
                throw std::invalid_argument(stamp);
            const int row = relative ? n_prompt - 1 + value : value;
            if (row < n_prompt - 1)
                fail(ErrorCode::wrong_use, "row {} is before the end of the prompt (row {})", row,
                     n_prompt - 1);
            if (row < earliest) fail(ErrorCode::wrong_use, "row {} comes after row {}", row, earliest);
            commands.push_back({row, parse_command(with_row(line.substr(blank + 1), n_prompt))});
            earliest = row_after(commands.back(), n_prompt);
        } catch (const Error& error) {
            fail(ErrorCode::wrong_use, "{}:{}: {}", file, number, error.what());
        } catch (const std::exception&) {
            fail(ErrorCode::wrong_use,
                 "{}:{}: '{}' does not begin with `+N` (tokens generated) or a row number, then a command",
                 file, number, line);
        }
    }
    return commands;
}

void print_warnings(const Model& model) {
    for (const std::string& warning : model.warnings())
        fmt::print(stderr, "keyhole: warning: {}\n",
                   printable_text(fmt::format("{}: {}", model.path().string(), warning)));
}

LoadedModel load_for_run(const RunOptions& options) {
    const std::string folder = options.model.empty() ? demo_model_folder() : options.model;
    if (folder.empty())
        fail(ErrorCode::wrong_use,
             "no model: the demo model assets/models/keyhole-base is not here; give --model DIR");
    LoadedModel loaded;
    loaded.model = load_model(folder);
    print_warnings(*loaded.model);
    std::string notice;
    loaded.backend = make_backend(loaded.model, options.backend_options(), &notice);
    loaded.backend_text = loaded.backend->name() + (notice.empty() ? "" : " (" + notice + ")");
    return loaded;
}

std::string program_version() {
    return KH_VERSION;
}

Progress::Progress(std::string title, double total)
    : title_(std::move(title)),
      total_(total),
      shown_(isatty(STDERR_FILENO) != 0),
      begin_(std::chrono::steady_clock::now()),
      next_(begin_) {}

Progress::~Progress() {
    if (printed_) fmt::print(stderr, "\r\033[K");
}

void Progress::update(double done) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now < next_ || total_ <= 0) return;
    next_ = now + std::chrono::milliseconds(100);
    const double share = std::min(1.0, done / total_),
                 seconds = std::chrono::duration<double>(now - begin_).count();
    constexpr int kWidth = 30;
    const std::string bar(static_cast<std::size_t>(share * kWidth), '#');
    const std::string left = share > 0.02 ? fmt::format("{:.0f} s left", seconds / share * (1 - share)) : "";
    fmt::print(stderr, "\r\033[K{} [{:<{}}] {:3.0f} % {}", title_, bar, kWidth, 100 * share, left);
    std::fflush(stderr);
    printed_ = true;
}

}  // namespace keyhole
