// Measures the cost of the window's frames. A small and a large run each have a window of their own. They are
// measured in turn (A B A B ...) while the others stand still. The numbers belong in tests/bench/results. No
// timed test uses them. Needs a display (xvfb-run).
#include "engine/base/resource_use.h"
#include "tests/bench/bench_options.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace keyhole {
namespace {

struct Options {
    int rounds = 5;
    int long_prompt = 4096;
    std::string size = "1600x1000", lanes = "full h2o:budget=25% keyformer:budget=25%";
    std::string only;  ///< name of the only contender to run; empty: all
    std::string view;  ///< a command to run first, such as mode.mask
};

/// What the user does during a measurement; each phase is measured separately.
constexpr std::array<const char*, 4> kPhases = {"decode", "point", "scrub", "zoom"};

struct Contender {
    std::string name;
    int n_layers, n_heads, head_dim, n_prompt;
    std::unique_ptr<reference::TinyModel> model;
    std::filesystem::path folder;
    pid_t pid = 0;
    std::map<std::string, std::vector<nlohmann::json>> reports;  // by phase
    std::string file(int round, const char* phase) const {
        return (folder / fmt::format("{}-{}.json", round, phase)).string();
    }
};

std::string script_of(const Contender& contender, const Options& options) {
    // Points over the heat map, which is near the middle of the window. The cell under the pointer changes
    // each time.
    const auto points = [](int n) {
        std::string lines;
        for (int i = 0; i < n; ++i)
            lines += fmt::format("mouse {} {}\n", 900 + 37 * i % 290, 260 + 53 * i % 280);
        return lines;
    };
    std::string script =
        "wait idle\n" + (options.view.empty() ? "" : options.view + "\n") + "step 4\nwait idle\n";
    script += "measure.begin\nmeasure.end " + contender.file(-1, "ready") + "\n";
    for (int round = 0; round < options.rounds; ++round) {
        const auto measured = [&](const char* phase, const std::string& lines) {
            script += "measure.begin\n" + lines + "measure.end " + contender.file(round, phase) + "\n";
        };
        script += "wait seconds 0.5\nrun.play\nwait seconds 0.3\n";  // the other windows stop meanwhile
        measured("decode", points(40));
        script += "run.stop\nwait idle\n";
        measured("point", points(30));
        std::string scrub, zoom;
        for (int i = 0; i < 20; ++i) scrub += i % 2 == 0 ? "time.back\n" : "time.last\n";
        measured("scrub", scrub);
        for (int i = 0; i < 20; ++i)
            zoom += fmt::format("view.zoom {} {} {}\n", 0.5 + 0.3 * i, contender.n_prompt / 2,
                                contender.n_prompt / 2);
        measured("zoom", zoom + "view.fit\n");
    }
    return script + "quit\n";
}

void start(Contender& contender, const Options& options) {
    contender.folder = contender.model->folder() / contender.name;
    std::filesystem::create_directories(contender.folder);
    std::ofstream(contender.folder / "prompt.txt") << reference::random_text(contender.n_prompt - 1, 5);
    std::ofstream(contender.folder / "script.txt") << script_of(contender, options);
    std::vector<std::string> words = {reference::built("keyhole"),
                                      "gui",
                                      "--model",
                                      contender.model->folder(),
                                      "--prompt-file",
                                      contender.folder / "prompt.txt",
                                      "--size",
                                      options.size,
                                      "--script",
                                      contender.folder / "script.txt"};
    std::istringstream lanes(options.lanes);
    for (std::string lane; lanes >> lane;) words.insert(words.end(), {"--lane", lane});
    contender.pid = fork();
    if (contender.pid == 0) {
        const int out = open((contender.folder / "out.txt").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(out, 1);
        dup2(out, 2);
        std::vector<char*> args;
        for (std::string& word : words) args.push_back(word.data());
        args.push_back(nullptr);
        execv(words[0].c_str(), args.data());
        _exit(127);
    }
}

/// Waits until the window has written the file and returns its content. Throws with the window's output if
/// the window ends first.
nlohmann::json wait_for(const Contender& contender, const std::string& path) {
    for (;;) {
        std::ifstream file(path);
        const nlohmann::json report = nlohmann::json::parse(file, nullptr, false);
        if (!report.is_discarded()) return report;
        int status = 0;
        if (waitpid(contender.pid, &status, WNOHANG) == contender.pid) {
            std::ostringstream words;
            words << std::ifstream(contender.folder / "out.txt").rdbuf();
            throw std::runtime_error(contender.name + " ended: " + words.str());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

double middle(const Contender& contender, const char* phase, const char* key) {
    std::vector<double> values;
    for (const nlohmann::json& report : contender.reports.at(phase)) values.push_back(report.at(key));
    return median(values);
}

double most(const Contender& contender, const char* phase, const char* key) {
    double value = 0;
    for (const nlohmann::json& report : contender.reports.at(phase))
        value = std::max(value, report.at(key).get<double>());
    return value;
}

void print_table(const std::vector<Contender>& contenders) {
    fmt::print("{:<16} {:<7} {:>8} {:>9} {:>8} {:>9} {:>10} {:>11} {:>9} {:>9}\n", "", "", "frames/s",
               "median ms", "p99 ms", "longest", "window ms", "process ms", "textures", "records");
    for (const char* phase : kPhases)
        for (const Contender& c : contenders)
            fmt::print(
                "{:<16} {:<7} {:>8.1f} {:>9.1f} {:>8.1f} {:>9.1f} {:>10.2f} {:>11.1f} {:>6.0f} MB {:>6.0f} "
                "MB\n",
                c.name, phase, middle(c, phase, "frames_per_s"), middle(c, phase, "median_ms"),
                middle(c, phase, "p99_ms"), most(c, phase, "longest_ms"), middle(c, phase, "thread_cpu_ms"),
                middle(c, phase, "process_cpu_ms"), 1e-6 * most(c, phase, "texture_bytes"),
                1e-6 * most(c, phase, "record_bytes"));
}

void print_ratio(const char* what, const Contender& a, const Contender& b) {
    for (const char* phase : kPhases) {
        std::vector<double> ratios;
        const auto &of_a = a.reports.at(phase), &of_b = b.reports.at(phase);
        for (std::size_t i = 0; i < of_a.size(); ++i)
            ratios.push_back(of_b[i].at("thread_cpu_ms").get<double>() /
                             of_a[i].at("thread_cpu_ms").get<double>());
        fmt::print("{:<44} {:<7} {:>6.2f}  ({:.2f} .. {:.2f})\n", what, phase, median(ratios),
                   *std::min_element(ratios.begin(), ratios.end()),
                   *std::max_element(ratios.begin(), ratios.end()));
    }
}

void run(const Options& options) {
    std::vector<Contender> contenders;
    for (const auto& [heads, dim, layers] : {std::array{8, 32, 6}, std::array{32, 8, 32}})
        for (const int n_prompt : {256, options.long_prompt}) {
            Contender c{fmt::format("{}x{} {}", layers, heads, n_prompt),
                        layers,
                        heads,
                        dim,
                        n_prompt,
                        {},
                        {},
                        0,
                        {}};
            if (!options.only.empty() && c.name != options.only) continue;
            reference::TinyShape shape;
            shape.n_layers = layers;
            shape.n_heads = shape.n_kv_heads = heads;
            shape.head_dim = dim;
            shape.d_ff = 512;
            shape.n_ctx = 8192;
            shape.dtype = reference::StoredAs::f16;
            shape.eos = 1000;  // no text ends by chance
            shape.n_vocab = 1001;
            c.model = std::make_unique<reference::TinyModel>(shape);
            contenders.push_back(std::move(c));
        }
    for (Contender& c : contenders) {
        start(c, options);
        wait_for(c, c.file(-1, "ready"));
        kill(c.pid, SIGSTOP);
    }
    double all = 0, own = 0;
    for (int round = 0; round < options.rounds; ++round)
        for (Contender& c : contenders) {
            const CpuTimes before = CpuTimes::now(c.pid);
            kill(c.pid, SIGCONT);
            for (const char* phase : kPhases) c.reports[phase].push_back(wait_for(c, c.file(round, phase)));
            const CpuTimes after = CpuTimes::now(c.pid);
            if (round + 1 < options.rounds) kill(c.pid, SIGSTOP);
            if (after.own > 0) {
                all += after.all - before.all;
                own += after.own - before.own;
            }
        }
    for (Contender& c : contenders) waitpid(c.pid, nullptr, 0);
    fmt::print(
        "window {}, lanes {}{}; {} rounds; other processes (the display server too) took {:.0f} % of the "
        "busy time\n",
        options.size, options.lanes, options.view.empty() ? "" : ", " + options.view, options.rounds,
        all > 0 ? 100 * (1 - own / all) : 0);
    print_table(contenders);
    if (contenders.size() < 4) return;
    fmt::print("\nprocessor time of the window's thread a frame, B over A                 (over rounds)\n");
    print_ratio("A 256 tokens, B 4,096 (6x8 heads)", contenders[0], contenders[1]);
    print_ratio("A 256 tokens, B 4,096 (32x32 heads)", contenders[2], contenders[3]);
    print_ratio("A 6x8 heads, B 32x32 (256 tokens)", contenders[0], contenders[2]);
    print_ratio("A 6x8 heads, B 32x32 (4,096 tokens)", contenders[1], contenders[3]);
}

}  // namespace
}  // namespace keyhole

int main(int n_args, char** args) {
    keyhole::Options options;
    if (!keyhole::read_options(n_args, args,
                               {{"--rounds", &options.rounds},
                                {"--tokens", &options.long_prompt},
                                {"--size", &options.size},
                                {"--lanes", &options.lanes},
                                {"--only", &options.only},
                                {"--view", &options.view}}))
        return 2;
    try {
        keyhole::run(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
