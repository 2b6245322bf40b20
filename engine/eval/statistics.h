/// Intervals for measured shares and means. Pure functions; any thread; knows nothing of the rest.
#pragma once

#include <span>

namespace keyhole {

/// 95 %. NaN where nothing can be said.
struct Interval {
    double low = 0, high = 0;
};

/// Of a share k / n (Wilson, 1927): (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.96. Needs 0 <= k <= n.
Interval wilson_interval(int k, int n);

struct Estimate {
    double value = 0;
    Interval interval;
};

/// Difference of two shares over the same n questions, of which the one was right alone in `only_first` and the other in
/// `only_second`: value (only_second - only_first) / n; interval by Bonett and Price (2012), which adds one question to each of the two
/// counts: d -+ z sqrt((p1 + p2 - d^2) / (n + 2)), p = (count + 1) / (n + 2), d = p2 - p1. Needs n > 0.
Estimate paired_difference(int only_first, int only_second, int n);

/// Mean with Student's t interval, values taken as independent. One value: interval NaN. Needs a value.
Estimate mean_estimate(std::span<const double> values);

/// 97.5 % point of Student's t with so many degrees of freedom, for 95 % intervals. Within 0.002 for every df >= 1.
double student_t(int df);

}  // namespace keyhole
