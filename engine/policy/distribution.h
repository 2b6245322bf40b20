/// Numbers of next-token distributions: log-softmax, entropy, KL, the best tokens. Pure functions; any
/// thread; knows nothing of the rest.
///
/// Sums run in double in one fixed order, so on one machine a result depends on its input alone. Natural logarithms
/// throughout.
#pragma once

#include <span>
#include <vector>

namespace keyhole {

/// log_prob[v] = logit[v] - max - ln(sum_u exp(logit[u] - max))
///
/// logits  [n_vocab], not empty; -inf marks an impossible token and stays -inf. `log_probs` may be the same
/// memory. All -inf, NaN or +inf in the input give NaN everywhere.
void log_softmax(std::span<const float> logits, std::span<float> log_probs);

/// H(p) = -sum_v p[v] ln p[v], nats, 0 ln 0 = 0. Takes log-probabilities.
double entropy(std::span<const float> log_probs);

/// KL(p || q) = sum_v p[v] (ln p[v] - ln q[v]), nats, never below 0. Takes log-probabilities; infinite where
/// q rules out what p allows.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

/// Index of the largest value, the first among equals; NaN never, 0 when there is nothing else.
int best(std::span<const float> values);

/// Indices of the k largest values, best first; equal values in ascending index order; NaN never. Fewer when
/// there are fewer.
std::vector<int> top_k(std::span<const float> values, int k);

}  // namespace keyhole
