/// Confidence intervals for measured shares and means.
/// Pure functions, for any thread; knows nothing of models or lanes.
#pragma once

#include <span>

namespace keyhole {

/// A 95 % interval. NaN where it is undefined.
struct Interval {
    double low = 0, high = 0;
};

/// Returns the interval of a share k / n (Wilson, 1927):
///
///     (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),   z = 1.96
///
/// Needs 0 <= k <= n.
Interval wilson_interval(int k, int n);

struct Estimate {
    double value = 0;
    Interval interval;
};

/// Returns the difference of two shares over the same n questions. only_first: questions that only the first
/// got right; only_second: likewise. The value is (only_second - only_first) / n. The interval is that of
/// Bonett and Price (2012), which adds one question to each of the two counts:
///
///     d -+ z sqrt((p1 + p2 - d^2) / (n + 2)),   p = (count + 1) / (n + 2),   d = p2 - p1
///
/// Needs n > 0.
Estimate paired_difference(int only_first, int only_second, int n);

/// Returns the mean of shares from 0 to 1, such as scores of answers, with Wilson's interval of that mean. No
/// values between 0 and 1 spread more than those that are 0 or 1, so it is wide enough. Needs a value.
Estimate mean_of_shares(std::span<const double> values);

/// Returns the mean of differences of shares, from -1 to 1, with the interval of Bonett and Price: one of 1
/// and one of -1 are added. Of -1, 0 and 1 it is paired_difference(). Needs a value.
Estimate mean_of_differences(std::span<const double> values);

/// Returns the mean with Student's t interval, for independent values. With one value the interval is NaN.
/// Needs a value.
Estimate mean_estimate(std::span<const double> values);

/// Returns the 97.5 % point of Student's t with df degrees of freedom, for 95 % intervals. Within 0.002 for
/// every df >= 1.
double student_t(int df);

}  // namespace keyhole
