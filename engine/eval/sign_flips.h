/// Decides several paired comparisons on the same samples together, with a correction for their number.
/// Pure function, for any thread; knows nothing of models or lanes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// What is measured of one comparison: a gain for every sample, above 0 where the first of the two is ahead.
using Gains = std::vector<double>;

/// Fewer samples than these cannot decide: the most extreme of k samples has p = 2^(1-k) on two sides.
inline constexpr int kLeastSamples = 6;
/// The largest p of a sure result, on two sides.
inline constexpr double kSureP = 0.05;

struct SignFlips {
    struct Comparison {
        double lead = 0;    ///< -1 to 1: all samples behind, and all ahead by equal gains
        double p = 1;       ///< corrected for all comparisons
        double spread = 0;  ///< standard deviation of the difference when signs are flipped
    };
    std::vector<Comparison> comparisons;
    Comparison together;  ///< the mean lead
    int n_telling = 0;    ///< samples with a gain other than 0 in some comparison
};

/// The test. With equal lanes a sample's gains could as well have the other sign. So the signs of whole
/// samples are flipped, the same for all comparisons, whose dependence on one another is thereby kept:
///
///     lead_j = sum_i gain_ij / sqrt(n sum_i gain_ij^2)       (0 if all gains are 0)
///     p      = share of flips with |mean_j lead_j| at least as large as measured
///     p_j    = share of flips with max_k |lead_k|  at least as large as |lead_j|
///
/// Every comparison has the same weight, whatever its unit and however large its gains. Sources: Fisher, The
/// Design of Experiments (1935), section 21; Westfall and Young, Resampling-Based Multiple Testing (1993),
/// for the maximum. Up to 13 telling samples all flips are tried, beyond that 4095 from a fixed seed, and the
/// samples as they are. Gains that are not finite count as 0.
///
/// Needs comparisons of equal size.
SignFlips sign_flips(std::span<const Gains> comparisons);

/// Returns how many samples would decide a comparison in four of five cases, if its lead per sample stays as
/// large as it was on n: with z = lead / spread,
///
///     n ((z_(1 - 0.025 / k) + z_0.8) / z)^2,   k = n_comparisons (Bonferroni)
///
/// rounded up to two digits, at least kLeastSamples. nullopt: there is no lead, or more than a million.
std::optional<int> samples_needed(double z, int n, int n_comparisons = 1);
/// Returns "about 120 questions would decide it in four of five cases, if the difference stays as it is";
/// without a number of samples what that means. samples: "questions". lead: of the comparison, or its gain.
std::string needed_text(const std::optional<int>& n, double lead, std::string_view samples);

}  // namespace keyhole
