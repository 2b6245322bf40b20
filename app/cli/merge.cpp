#include "app/cli/commands.h"
#include "app/cli/output.h"
#include "app/study/shard_file.h"
#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

namespace keyhole {

namespace {

struct MergeOptions {
    std::vector<std::string> folders;
    std::string out;
};

void run_merge(const MergeOptions& options) {
    const MergeReport report = merge_shards(options.folders, options.out);
    print_out("{} of {} are joined in {}, {} of them new\n", counted(report.n_answers, "answer"),
              counted(options.folders.size(), "shard"), printable_text(options.out), report.n_new);
    for (const std::string& line : report.lost) print_out("{}\n", line);
    if (report.lost.empty()) {
        print_out("the results: {}\n", report.next);
        return;
    }
    fail(ErrorCode::wrong_use, "{} of the shards {} not complete; the lines above compute {}, and only {}",
         report.lost.size(), report.lost.size() == 1 ? "is" : "are", report.lost.size() == 1 ? "it" : "them",
         report.lost.size() == 1 ? "it" : "them");
}

}  // namespace

void add_merge_command(const CliCommand& program) {
    auto options = std::make_shared<MergeOptions>();
    const CliCommand command =
        program.add_command("merge", "join the answers that several machines found with --shard");
    command.add_option("FOLDER", options->folders, "the --out folders of the shards").required();
    command
        .add_option(
            "-o,--out", options->out,
            "folder for the joined answers.csv; the command of the shards, without --shard, prints the "
            "results from it")
        .required()
        .some_path();
    command.does([options] { run_merge(*options); });
}

}  // namespace keyhole
