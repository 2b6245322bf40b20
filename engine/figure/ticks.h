/// Places and texts of axis ticks. Pure functions; any thread. Knows nothing of the other folders.
#pragma once

#include <string>
#include <vector>

namespace keyhole {

/// Returns round values (1, 2, 5 times a power of ten) within [low, high]: at most `most`, and at least two
/// where the range allows.
std::vector<double> linear_ticks(double low, double high, int most);
/// Returns powers of ten within [low, high], thinned to about `most`; with fewer than two powers, steps of
/// 1, 2, 5. Needs 0 < low < high.
std::vector<double> log_ticks(double low, double high, int most);
/// Returns the round whole numbers in [first, first + n) that are at least `least_gap` apart, from the
/// first multiple of their step on.
std::vector<int> index_ticks(int first, int n, int least_gap);

struct Tick {
    double value = 0;
    std::string text;
};
/// Adds short texts, such as "0.05", "2e-7" and "1500", with as many digits as it takes to tell neighbours
/// apart.
std::vector<Tick> labelled(const std::vector<double>& ticks);

}  // namespace keyhole
