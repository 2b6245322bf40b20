/// Gives out a budget in whole tokens. Pure, for host and device, with the same bits: sums and products of
/// doubles, which nothing contracts. Any thread. Knows neither heads nor scores.
#pragma once

#include "engine/base/host_device.h"

#include <cstdint>

namespace keyhole {

inline constexpr double kWholeWithin = 1e-9;  ///< sums of products miss whole numbers by a few bits

/// A part of a budget: whole tokens, and what is left of one.
struct WholePart {
    std::int32_t whole;
    double rest;
};
/// part: at least 0, as for the next.
KH_FN WholePart whole_part(double part) {
    const double near = static_cast<std::int32_t>(part + 0.5), off = part - near;
    const double exact = off < kWholeWithin && off > -kWholeWithin ? near : part;
    const auto whole = static_cast<std::int32_t>(exact);
    return {whole, exact - whole};
}
/// Rounds to the nearest whole number; of two the even one.
KH_FN std::int32_t nearest_even(double part) {
    const auto whole = static_cast<std::int32_t>(part);
    const double rest = part - whole;
    return whole + (rest > 0.5 || (rest == 0.5 && whole % 2 != 0) ? 1 : 0);
}

/// Returns whether part i gets a token that is left before part j does: the one with the larger rest, the
/// first one where these are equal.
KH_FN bool rounds_up_before(double rest, int i, double other, int j) {
    return rest > other + kWholeWithin || (!(other > rest + kWholeWithin) && i < j);
}

/// Returns floor * budget + (1 - floor) * n_best.
KH_FN double part_of_budget(double floor, int budget, int n_best) {
    double part = floor * budget;
    for (int i = 0; i < n_best; ++i) part += 1 - floor;
    return part;
}

}  // namespace keyhole
