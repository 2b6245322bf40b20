/// The options of eval and sweep for questions from the user's files, as typed. Main thread; knows no window.
#pragma once

#include "app/cli/command.h"

#include "app/cli/options.h"
#include "engine/eval/data_questions.h"

#include <string>
#include <vector>

namespace keyhole {

/// --beams and what belongs to it.
struct BeamArguments {
    BeamSettings settings;
    std::string scores = "apart";

    void add(const CliCommand& command);
    BeamSettings parsed() const;
};

struct DataArguments {
    std::vector<std::string> files;
    std::string few_shot, until = "line", answers;
    int n_shots = 0, answer_tokens = 0;
    int n_before = 0;  ///< questions of the file that are left out before those asked
    bool cut = false, stems = false, last_number = false;
    Sampling rules;
    BeamArguments beams;

    void add(const CliCommand& command);
    /// Returns the options for one of the files. Throws Error(wrong_use) if some do not fit together.
    DataOptions options(const std::string& file, int n_context, int n_samples) const;
    /// Throws Error(wrong_use) if an option is given that does nothing without --data.
    void check_unused() const;
};

}  // namespace keyhole
