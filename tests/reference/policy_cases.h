/// Lane specs beside the simulation that each must equal: every preset in both dialects, the options between them, and overrides.
#pragma once

#include "tests/reference/simulation.h"

#include <functional>
#include <string>
#include <vector>

namespace reference {

struct PolicyCase {
    std::string spec;
    Unit unit = Unit::head;
    NoiseOf noise = no_noise();  ///< what the spec draws; a recording brings its own instead
    std::function<Simulated(const Observed&, const Readers&, const NoiseOf&)> simulate;
    bool evicts = true;
};

/// Budget k as the user writes it (0 and more than the text allowed), for a text whose session generates n_generate tokens. Two layers
/// or more for the overrides.
std::vector<PolicyCase> policy_cases(int k, int n_generate);
/// Budgets in percent of a prompt of n tokens, truncated as each code truncates them.
std::vector<PolicyCase> percent_cases(int n_prompt, int n_generate);

/// First difference between what was run and what was simulated, in words with row, sets and margin; empty when there is none.
struct Difference {
    std::string what;
    bool near_tie =
        false;  ///< a choice whose margin is within float's rounding; what follows is not compared
    double least_margin = 0;
    int n_choices = 0;  ///< rows after which something was evicted
};
Difference compare_rows(const Simulated& got, const Simulated& expected, int first_row, double tolerance);

}  // namespace reference
