/// Measures of next-token distributions: log-softmax, entropy, KL, the best tokens. Pure functions; any
/// thread; knows nothing of the other folders. Natural logarithms throughout.
///
/// Sums run in double in one fixed order, so that on one machine a result depends only on its input.
#pragma once

#include <span>
#include <vector>

namespace keyhole {

/// Computes log_prob[v] = logit[v] - max - ln(sum_u exp(logit[u] - max)).
///
/// logits  [n_vocab], not empty; -inf marks an impossible token and stays -inf. `log_probs` may be the same
/// memory. The result is NaN everywhere when all logits are -inf, or when any is NaN or +inf.
void log_softmax(std::span<const float> logits, std::span<float> log_probs);

/// Returns H(p) = -sum_v p[v] ln p[v] in nats, with 0 ln 0 = 0. Takes log-probabilities.
double entropy(std::span<const float> log_probs);

/// Returns KL(p || q) = sum_v p[v] (ln p[v] - ln q[v]) in nats, never below 0. Takes log-probabilities.
/// Infinite when q is 0 where p is not.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

/// Returns the index of the largest value, the first among equals. Skips NaN; 0 when there is nothing else.
int best(std::span<const float> values);

/// Returns the indices of the k largest values, best first, equal values in ascending index order. Skips
/// NaN; returns fewer when there are fewer values.
std::vector<int> top_k(std::span<const float> values, int k);

}  // namespace keyhole
