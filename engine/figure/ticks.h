/// Places and texts of axis ticks. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace keyhole {

/// Round values (1, 2, 5 times a power of ten) within [low, high], at most `most`, at least two where the
/// range allows.
std::vector<double> linear_ticks(double low, double high, int most);
/// Powers of ten within [low, high], thinned to `most`; fewer than two powers: 1, 2, 5 steps between. Needs 0
/// < low < high.
std::vector<double> log_ticks(double low, double high, int most);
/// Round whole numbers for indices 0 .. n - 1 that are at least `least_gap` apart. Starts with the first
/// multiple >= first.
std::vector<int> index_ticks(int first, int n, int least_gap);
/// Shortest text that tells neighbouring ticks apart: "0.05", "2e-7", "1,500" without the comma.
std::string tick_text(double value);

}  // namespace keyhole
