#include "app/base/assets.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/json_head.h"
#include "app/cli/model_option.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/lab/lab_table.h"
#include "app/manual/html.h"
#include "app/manual/page.h"
#include "app/view/page_source.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

struct CheckOptions {
    RunOptions run;
    std::vector<std::string> hand_ins;
    std::string name, out, handout, salt, format = "text";
    CliOption new_option;
    bool measured = false;
};

std::shared_ptr<const TaskTexts> lab_texts() {
    const fs::path tasks = find_assets() / "tasks";
    return std::make_shared<const TaskTexts>(tasks / "words.json", read_text_file(tasks / "narrative.txt"),
                                             read_text_file(tasks / "passages.txt"));
}

/// Writes a file that is not there yet: a student's answers must not be lost.
void write_new_file(const fs::path& path, const std::string& text) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(path, ignored)))
        fail(ErrorCode::wrong_use, "{} is there already; move it away, or name another folder with --out",
             path.string());
    write_text_file(path, text);
}

/// Writes an empty hand-in, and the student's prompt beside it.
void begin_hand_in(const CheckOptions& options) {
    const std::string name = student_name(options.name);
    const auto model = load_model(model_path(options.run));
    print_warnings(*model);
    const StudentNumbers numbers = student_numbers(*model, *lab_texts(), seed_of_name(name));
    const fs::path folder = options.out.empty() ? fs::path(".") : fs::path(options.out);
    make_folder(folder, "the hand-in");
    const fs::path file = folder / (file_name_of(name) + ".json"),
                   prompt = folder / (file_name_of(name) + ".txt");
    write_new_file(file, empty_hand_in(name, numbers));
    write_new_file(prompt, numbers.prompt);
    print_out("{}: the exercises of {}, seed {}; fill in the answers\n{}: your prompt\n",
              printable_text(file.lexically_normal().string()), name, numbers.seed,
              printable_text(prompt.lexically_normal().string()));
}

/// Returns the handout as a page that needs no other file.
std::string handout_page() {
    const ManualPage page =
        parse_manual_page("handout", read_text_file(find_assets() / "lab" / "handout.md"));
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\">\n<title>{}</title>\n<style>\n{}{}"
        "@media print {{ pre {{ white-space: pre-wrap; break-inside: avoid; }} }}\n</style>\n</head>\n<body "
        "class=\"site\">\n"
        "<main>\n{}</main>\n</body>\n</html>\n",
        plain_text(page.blocks.front().text), page_source("page.css"), page_source("site.css"),
        manual_html(page));
}

/// Returns the files that were named, and those of the folders that were named. has_folder: there is one.
std::vector<fs::path> hand_in_files(const std::vector<std::string>& names, bool& has_folder) {
    std::vector<fs::path> files;
    for (const std::string& name : names) {
        std::error_code error;
        if (!fs::is_directory(name, error)) {
            files.emplace_back(name);
            continue;
        }
        has_folder = true;
        std::vector<fs::path> found;
        for (fs::directory_iterator entry(name, error), end; !error && entry != end; entry.increment(error))
            if (entry->path().extension() == ".json") found.push_back(entry->path());
        if (error) fail(ErrorCode::wrong_use, "cannot read the folder {}: {}", name, error.message());
        if (found.empty()) fail(ErrorCode::wrong_use, "{} has no hand-in (a .json file)", name);
        std::sort(found.begin(), found.end());
        files.insert(files.end(), found.begin(), found.end());
    }
    return files;
}

/// Reads all files before a model is loaded.
std::vector<LabRow> read_rows(const std::vector<fs::path>& files) {
    std::vector<LabRow> rows;
    for (const fs::path& file : files) {
        LabRow& row = rows.emplace_back();
        row.file = printable_text(file.string());
        try {
            row.check.hand_in = read_hand_in(file);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::bad_file) throw;
            row.fault = printable_text(error.what());
        }
    }
    return rows;
}

std::string row_text(const LabRow& row, bool with_measured) {
    if (!row.fault.empty()) return row.fault + "\n";
    std::string text = fmt::format("{}: {}, seed {}\n", row.file, row.check.hand_in.name,
                                   seed_of_name(row.check.hand_in.name));
    text += exercise_lines(row.check, with_measured);
    for (const std::string& copied : row.copied) text += fmt::format("  copied: {}\n", copied);
    return text;
}

/// Throws what the exit status is made from: 2 for a file that cannot be read, 1 for an exercise.
void report_status(const std::vector<LabRow>& rows) {
    const auto n_of = [&](auto is) { return std::count_if(rows.begin(), rows.end(), is); };
    const auto n_unread = n_of([](const LabRow& row) { return !row.fault.empty(); });
    if (n_unread > 0) fail(ErrorCode::wrong_use, "{} of {} hand-ins cannot be read", n_unread, rows.size());
    const auto n_open = n_of([](const LabRow& row) { return !row.check.passes(); });
    if (n_open > 0 && rows.size() == 1)
        fail(ErrorCode::bad_file, "{} does not pass all exercises", rows.front().file);
    if (n_open > 0)
        fail(ErrorCode::bad_file, "{} of {} hand-ins do not pass all exercises", n_open, rows.size());
}

void check_hand_ins(const CheckOptions& options) {
    bool as_table = false;
    const std::vector<fs::path> files = hand_in_files(options.hand_ins, as_table);
    std::vector<LabRow> rows = read_rows(files);
    if (rows.size() == 1 && !rows.front().fault.empty()) fail(ErrorCode::wrong_use, "{}", rows.front().fault);
    const LoadedModel loaded = load_for_run(options.run);
    LabBench bench(loaded.model, *loaded.backend, options.run.backend_options().n_threads, lab_texts(),
                   options.salt);
    {
        Progress progress("check", static_cast<double>(rows.size()));
        double n_done = 0;
        for (LabRow& row : rows) {
            progress.set_part(row.file);
            if (row.fault.empty()) row.check = bench.check(row.check.hand_in);
            progress.update(++n_done);
        }
    }
    mark_copies(rows);
    if (options.format == "csv") {
        print_out("{}", lab_csv(rows));
    } else if (options.format == "json") {
        nlohmann::json json = json_head(*loaded.model, loaded.backend->name());
        json["hand_ins"] = lab_json(rows, options.measured);
        print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else if (as_table) {
        print_out("{}", lab_table(rows));
    } else {
        for (const LabRow& row : rows) print_out("{}", row_text(row, options.measured));
    }
    report_status(rows);
}

void run_check(const CheckOptions& options) {
    const bool begins = options.new_option.is_given();
    if (options.hand_ins.empty() && !begins && options.handout.empty())
        fail(ErrorCode::wrong_use,
             "nothing to check; name a hand-in or a folder of them, or begin one: keyhole check --new NAME");
    if (!options.hand_ins.empty() && (begins || !options.handout.empty()))
        fail(ErrorCode::wrong_use, "--new and --handout write files; leave out {}", options.hand_ins.front());
    if (!options.out.empty() && !begins)
        fail(ErrorCode::wrong_use, "--out is the folder of --new; add it, or leave --out out");
    if (!options.handout.empty()) {
        write_text_file(options.handout, handout_page());
        print_note("written to {}\n", printable_text(options.handout));
    }
    if (begins) begin_hand_in(options);
    if (!options.hand_ins.empty()) check_hand_ins(options);
}

}  // namespace

void add_check_command(const CliCommand& program) {
    auto options = std::make_shared<CheckOptions>();
    const CliCommand command = program.add_command(
        "check", "check hand-ins of the lab: each answer is measured on the student's own prompts");
    command.add_option("HANDIN", options->hand_ins,
                       "hand-ins (JSON): a line for each exercise; or a folder of them: a table of all");
    options->new_option = command.add_option(
        "--new", options->name,
        "write an empty hand-in for a student, with a seed and numbers that follow from this name");
    command.add_option("-o,--out", options->out, "folder for the files of --new (default: the current one)")
        .some_path();
    command.add_option("--handout", options->handout, "file to write the lab's handout to, as a page (HTML)")
        .some_path();
    command.add_option("--salt", options->salt,
                       "a text that students do not know: the hidden questions are then others");
    command.add_flag("--measured", options->measured,
                     "also print what was measured where a prediction is wrong");
    command.add_option("--format", options->format, "how the results are printed")
        .one_of({"text", "csv", "json"})
        .shows_default();
    options->run.add_model(command);
    options->run.add_backend(command);
    options->run.measures = true;
    command.does([options] { run_check(*options); });
}

}  // namespace keyhole
