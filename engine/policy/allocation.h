/// Shares a budget between heads or layers. Pure functions; any thread; knows no cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// What a KV head brings where heads share a budget: its tokens that may leave, and how many of them it would
/// keep alone.
struct HeadShare {
    std::vector<std::int32_t> positions{};  ///< ascending
    std::vector<float> score{};             ///< NaN ranks lowest
    std::vector<float> tie{};               ///< orders equal scores; empty: age alone
    int budget = 0;
};

/// Returns how many of its tokens each head keeps (Ada-KV, algorithm 1): with a_g, the tokens of head g among
/// the best of all heads, as many as the budgets together,
///     floor * budget + (1 - floor) * a_g
/// in whole numbers by the largest remainder, so that the total is exact. Among equal scores the larger tie
/// is better, then the younger token, then the higher head. A head that has not as many tokens gives the rest
/// to the heads with the best tokens that would leave.
/// rounds: as the released Ada-KV does, which rounds (1 - floor) a_g to the nearest even number and adds
/// int(floor * budget), and so may miss the total.
std::vector<int> share_budget(std::span<const HeadShare> heads, double floor, bool rounds = false);

/// Returns whole numbers with the sum of the parts, rounded: each part without its fraction, and one more for
/// those with the largest fractions, the first ones where these are equal.
std::vector<int> by_largest_remainder(std::span<const double> parts);

/// Returns how many tokens of a budget each part gets: in proportion to lengths, by the largest remainder,
/// but no fewer than its `least` and no more than its `most`; what these bounds take or leave, the others
/// share in the same way. The sum is the budget where the bounds allow it.
std::vector<int> share_by_length(int budget, std::span<const int> lengths, std::span<const int> least,
                                 std::span<const int> most);

/// Returns how many tokens each layer keeps beside `kept` that are protected (PyramidKV): a straight line
/// from the lowest layer to the top one, which has (budget - kept) / beta, with the mean budget - kept. No
/// layer gets more than a prompt of n has; one that is no longer than the budget is kept whole by all.
std::vector<int> pyramid_budgets(int n_layers, int budget, int kept, int n, double beta);
/// Returns the same as the released code has it (KVCache-Factory): whole steps between layers, which store
/// more than they say, and equal layers where a prompt is shorter than twice the mean.
std::vector<int> released_pyramid_budgets(int n_layers, int budget, int kept, int n, double beta);

}  // namespace keyhole
