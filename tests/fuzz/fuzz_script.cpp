// Fuzzes scripts of both kinds: commands with rows, as `decode` reads them, and steps, as the window reads
// them.
#include "app/actions/script_step.h"
#include "engine/run/command_script.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/piece_mutator.h"

#include <cmath>

namespace keyhole::fuzz_script {

namespace {

[[noreturn]] void stop(const char* what, const std::string& a, const std::string& b = {}) {
    std::fprintf(stderr, "%s: %s | %s\n", what, a.c_str(), b.c_str());
    std::abort();
}

void check_round(const Command& command) {
    const std::string text = format_command(command);
    try {
        if (!(parse_command(text) == command))
            stop("another command comes back", text, format_command(parse_command(text)));
    } catch (const Error& error) {
        stop("what was written is refused", text, error.what());
    }
}

constexpr int kPrompt = 20, kLast = 99;

void check_timed(std::string_view text) {
    for (const LoggedCommand& logged : parse_timed_script("fuzz", script_lines(text), kPrompt, kLast)) {
        if (logged.row < kPrompt - 1 || logged.row > kLast)
            stop("a row outside of the run", std::to_string(logged.row));
        check_round(logged.command);
    }
}

void check_step(const ScriptLine& line) {
    const ScriptStep step = parse_script_step(line.text);
    for (const double value : {step.x, step.y, step.seconds})
        if (!(std::abs(value) <= 1e6)) stop("a number out of its range", line.text);
    if (step.n < 0 || (step.n > 1 && step.kind != ScriptStep::Kind::wait_steps))
        stop("no such button", line.text);
    if (step.kind == ScriptStep::Kind::drop && step.paths.empty()) stop("nothing is dropped", line.text);
    if (!(parse_script_step(line.text) == step)) stop("read twice, it is another step", line.text);
    if (step.kind == ScriptStep::Kind::point) expect_error_or_none([&] { parse_parts(step.words); });
}

constexpr std::string_view kWords[] = {"+0 ",
                                       "+5 ",
                                       "25 ",
                                       "lane",
                                       "add",
                                       "remove",
                                       "follow",
                                       "on",
                                       "off",
                                       "sampling",
                                       "temperature=0.7",
                                       "top_k=3",
                                       "top_p=0.9",
                                       "fork",
                                       "rewind",
                                       "rewind +3",
                                       "branch",
                                       "evict",
                                       "pin",
                                       "unpin",
                                       "L0.H1",
                                       "L3",
                                       "force",
                                       "force!",
                                       "say",
                                       "say!",
                                       "say_after",
                                       "\"a b\"",
                                       "\\n",
                                       "\\\"",
                                       "h2o:budget=4",
                                       "full",
                                       "wait",
                                       "rows",
                                       "idle",
                                       "seconds",
                                       "mouse",
                                       "point",
                                       "click",
                                       "press",
                                       "release",
                                       "wheel",
                                       "key",
                                       "Ctrl+P",
                                       "text",
                                       "drop",
                                       "a|b",
                                       "try",
                                       "deadline",
                                       "finally",
                                       "#",
                                       "quit",
                                       "step",
                                       "\n",
                                       "\r\n"};

}  // namespace

static int run(const std::uint8_t* data, std::size_t size) {
    const std::string_view text = text_of(data, size);
    expect_error_or_none([&] { check_timed(text); });
    for (const ScriptLine& line : script_lines(text)) {
        if (line.text.empty() || line.text.front() == '#') stop("a line that says nothing", line.text);
        expect_error_or_none([&] { check_step(line); });
        expect_error_or_none([&] { check_round(parse_command(line.text)); });
    }
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_pieces(data, size, max_size, seed, "\n ,=.:\"", kWords);
}

static const FuzzTarget target("script", run, mutate);

}  // namespace keyhole::fuzz_script
