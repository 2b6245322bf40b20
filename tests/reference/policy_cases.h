/// Pairs of a lane spec and the simulation that it must equal: every preset in both dialects, the options
/// between them, and overrides.
#pragma once

#include "tests/reference/simulation.h"

#include <functional>
#include <string>
#include <vector>

namespace reference {

struct PolicyCase {
    std::string spec;
    Unit unit = Unit::head;
    NoiseOf noise = no_noise();  ///< noise that the spec draws; a recorded run brings its own instead
    std::function<Simulated(const Observed&, const Readers&, const NoiseOf&)> simulate;
    bool evicts = true;
};

/// Returns the cases for budget k as the user writes it (it may be 0 or exceed the text), for a text whose
/// session generates n_generate tokens. Overrides need two layers or more.
std::vector<PolicyCase> policy_cases(int k, int n_generate);
/// Returns cases with budgets in percent of an n-token prompt, truncated as each code truncates them.
std::vector<PolicyCase> percent_cases(int n_prompt, int n_generate);

/// First difference between a run and its simulation: row, sets and margin in words; empty when they agree.
struct Difference {
    std::string what;
    bool near_tie = false;  ///< the margin is within float rounding; later rows are not compared
    double least_margin = 0;
    int n_choices = 0;  ///< rows that evicted something
};
Difference compare_rows(const Simulated& got, const Simulated& expected, int first_row, double tolerance);

}  // namespace reference
