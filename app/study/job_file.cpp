#include "app/study/job_file.h"

#include "app/base/command_text.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

/// Returns the arguments of the command without --job and --shards, up to its --out, with this shard and
/// folder in their place. Both are words of a shell.
std::string arguments_of(const JobPlan& plan, const std::string& shard, const std::string& out) {
    std::string text = plan.command.substr(plan.command.find(' ') + 1);
    const auto drop = [&](const std::string& option, const std::string& by) {
        for (std::size_t at = text.find(option); at != std::string::npos; at = text.find(option))
            text.replace(at, option.size(), by);
    };
    const std::string kind = plan.kind == JobKind::slurm ? "slurm" : "parallel";
    for (const char* between : {" ", "="}) {
        drop(fmt::format(" --job{}{}", between, kind), "");
        drop(fmt::format(" --shards{}{}", between, plan.n_shards), "");
    }
    for (const char* option : {" --out OUT", " -o OUT"}) drop(option, " --out=" + out);
    return text + shard;
}

/// Returns the lines that join the shards and print the results.
std::string last_lines(const JobPlan& plan) {
    std::string folders;
    for (int i = 1; i <= plan.n_shards; ++i) folders += " " + shell_word(fmt::format("{}-{}", plan.out, i));
    const std::string out = shell_word(plan.out);
    return fmt::format("\"$KEYHOLE\" merge{} --out {} &&\n\"$KEYHOLE\" {}", folders, out,
                       arguments_of(plan, "", out));
}

std::string parallel_text(const JobPlan& plan) {
    // The command is read by two shells: this one, and that of the machine that runs it.
    const std::string shard =
        arguments_of(plan, fmt::format(" --shard SHARD/{}", plan.n_shards), shell_word(plan.out + "-SHARD"));
    std::string numbers;
    for (int i = 1; i <= plan.n_shards; ++i) numbers += fmt::format(" {}", i);
    return fmt::format(
        "# GNU parallel runs {0} shards, then one command joins them. A shard goes on where it stopped.\n"
        "#   sh {1}/job.sh                   here, one shard at a time\n"
        "#   HOSTS=one,two sh {1}/job.sh     over ssh on machines that see the same folders\n"
        "#   JOBS=2 sh {1}/job.sh            two shards at a time on each machine\n"
        "set -eu\ncd {2}\n"
        ": \"${{KEYHOLE:={3}}}\" \"${{HOSTS:=:}}\" \"${{JOBS:=1}}\"\n"
        "parallel --sshlogin \"$HOSTS\" --jobs \"$JOBS\" --workdir \"$PWD\" -I SHARD \\\n"
        "    \"$KEYHOLE \"{4} :::{5}\n"
        "{6}\n",
        plan.n_shards, shell_word(plan.out), shell_word(plan.folder), plan.program, shell_word(shard),
        numbers, last_lines(plan));
}

std::string slurm_text(const JobPlan& plan) {
    const std::string id = "\"$SLURM_ARRAY_TASK_ID\"";
    const std::string shard =
        "\"$KEYHOLE\" " +
        arguments_of(plan, fmt::format(" --shard {}/{}", id, plan.n_shards), shell_word(plan.out + "-") + id);
    const auto log = [&](const char* name) { return shell_word(fmt::format("{}/{}", plan.out, name)); };
    return fmt::format(
        "# Slurm runs {0} shards as an array, then one job that joins them. A shard goes on where it "
        "stopped.\n"
        "#   sh {1}/job.sh --partition=NAME --time=1:00:00     its arguments are those of sbatch\n"
        "# The results stand in {1}/results.txt.\n"
        "set -eu\ncd {2}\n"
        ": \"${{KEYHOLE:={3}}}\"\nexport KEYHOLE\n"
        "shards=$(sbatch --parsable --job-name=keyhole --array=1-{0} --output={4} \"$@\" \\\n    "
        "--wrap={5})\n"
        "sbatch --parsable --job-name=keyhole-results --dependency=\"afterok:${{shards%%;*}}\" \\\n"
        "    --output={6} \"$@\" --wrap={7}\n",
        plan.n_shards, shell_word(plan.out), shell_word(plan.folder), plan.program, log("shard-%a.txt"),
        shell_word(shard), log("results.txt"), shell_word(last_lines(plan)));
}

constexpr std::string_view kBegin = "#!/bin/sh\n# Written by: ";

}  // namespace

bool is_job_text(std::string_view text) {
    return text.starts_with(kBegin);
}

std::string job_text(const JobPlan& plan) {
    const std::string begin = fmt::format("{}{}\n", kBegin, plan.command);
    return begin + (plan.kind == JobKind::slurm ? slurm_text(plan) : parallel_text(plan));
}

}  // namespace keyhole
