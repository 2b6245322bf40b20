/// The job file of a command that several machines share: a shell script that runs its shards, joins them and
/// prints the results. Pure function, for any thread; runs nothing.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

enum class JobKind {
    slurm,     ///< an array job, and one after it that joins
    parallel,  ///< GNU parallel, here or over ssh
};

/// What the job file of a command needs to know.
struct JobPlan {
    JobKind kind = JobKind::parallel;
    std::string program;  ///< path of this program
    std::string folder;   ///< in which the command was typed; its relative names count from there
    std::string command;  ///< as command_text() has it: its own --out is OUT
    std::string out;
    int n_shards = 4;
};

/// Returns the script. Shard I writes to OUT-I, and the results stand in OUT.
std::string job_text(const JobPlan& plan);
/// Returns whether job_text() wrote a script.
bool is_job_text(std::string_view text);

}  // namespace keyhole
