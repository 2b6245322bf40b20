/// The arithmetic of `expected` and `tri` in double: pure, for host and device, with the same bits. What each
/// ranks by is in backend/common/query_statistics.h. Any thread.
#pragma once

#include "engine/policy/lag.h"

#include <cmath>
#include <cstdint>

namespace keyhole {

/// Sums over channels, and over tokens, are of so many parts: every 32nd of them each, then in pairs.
inline constexpr int kQueryParts = 32;

/// part(k): of kQueryParts.
template <class Part>
KH_FN double sum_of_parts(Part part) {
    double half[kQueryParts / 2];
    for (int j = 0; j < kQueryParts / 2; ++j) half[j] = part(2 * j) + part(2 * j + 1);
    for (int n = kQueryParts / 4; n > 0; n /= 2)
        for (int j = 0; j < n; ++j) half[j] = half[2 * j] + half[2 * j + 1];
    return half[0];
}

/// Which channels of a head turn together.
struct RotatedPairs {
    std::int32_t n = 0;
    std::int32_t interleaved = 0;  ///< 1: (2 f, 2 f + 1), else (f, f + n)

    KH_FN int first(int f) const { return interleaved != 0 ? 2 * f : f; }
    KH_FN int second(int f) const { return interleaved != 0 ? 2 * f + 1 : f + n; }
};

/// Returns channel c of M^T k. M: the mean of some rotations; turn: the cosine and the sine of pair f in it,
/// at f and n + f. key(c)
template <class Key>
KH_FN double turned_back(const RotatedPairs& pairs, const double* turn, Key key, int c) {
    if (c >= 2 * pairs.n) return static_cast<double>(key(c));
    const int f = pairs.interleaved != 0 ? c / 2 : c % pairs.n;
    const double a = static_cast<double>(key(pairs.first(f))), b = static_cast<double>(key(pairs.second(f))),
                 cosine = turn[f], sine = turn[pairs.n + f];
    return c == pairs.first(f) ? cosine * a + sine * b : cosine * b - sine * a;
}

/// Returns the length of pair f of a key.
template <class Key>
KH_FN double length_of_pair(const RotatedPairs& pairs, Key key, int f) {
    const double a = static_cast<double>(key(pairs.first(f))), b = static_cast<double>(key(pairs.second(f)));
    return sqrt(a * a + b * b);
}

/// Returns part k of a token's logit for `expected`, scale u.m + scale^2 / 2 u.C u. u: the key turned back;
/// m, C: mean and covariance of queries. product(e): channel e of C^T u.
template <class Turned, class Mean, class Product>
KH_FN double expected_part(int k, int head_dim, double scale, Turned turned, Mean mean, Product product) {
    double linear = 0, square = 0;
    for (int e = k; e < head_dim; e += kQueryParts) {
        linear += turned(e) * mean(e);
        square += turned(e) * product(e);
    }
    return scale * linear + scale * scale / 2 * square;
}

/// Returns part k of a token's score for `tri`, u.m + sum_f lacks_f |k_f|. lacks(f): by how much the mean of
/// queries is shorter than their mean length; length(f): of the key's pair.
template <class Turned, class Mean, class Lacks, class Length>
KH_FN double tri_part(int k, int head_dim, int n_pairs, Turned turned, Mean mean, Lacks lacks,
                      Length length) {
    double sum = 0;
    for (int e = k; e < head_dim; e += kQueryParts) sum += turned(e) * mean(e);
    for (int f = k; f < n_pairs; f += kQueryParts) sum += lacks(f) * length(f);
    return sum;
}

/// What turns a query head's logits or scores into ranks: of `expected`, the largest and the sum of all
/// weights; of `tri`, mean and deviation.
struct RankedAgainst {
    double centre = 0, spread = 1;
};

/// Returns part k of the largest logit(i) of n tokens, of those that count(i).
template <class Logit, class Counts>
KH_FN double largest_part(int k, int n, Logit logit, Counts counts) {
    double most = -INFINITY;
    for (int i = k; i < n; i += kQueryParts)
        if (counts(i)) most = most < logit(i) ? logit(i) : most;
    return most;
}
/// Returns part k of the sum of term(i).
template <class Term, class Counts>
KH_FN double sum_part(int k, int n, Term term, Counts counts) {
    double sum = 0;
    for (int i = k; i < n; i += kQueryParts)
        if (counts(i)) sum += term(i);
    return sum;
}

/// part(k): of largest_part().
template <class Part>
KH_FN double largest_of_parts(Part part) {
    double most = part(0);
    for (int k = 1; k < kQueryParts; ++k) most = most < part(k) ? part(k) : most;
    return most;
}
/// sum: of the n scores that count.
KH_FN double centre_of_scores(double sum, int n) {
    return n > 0 ? sum / n : 0;
}
/// squares: of their deviations.
KH_FN double spread_of_scores(double squares, int n) {
    constexpr double kLeast = 1e-6;
    if (n <= 0) return 1;
    const double spread = sqrt(squares / n);
    return spread < kLeast ? kLeast : spread;
}

KH_FN double expected_weight(double logit, double most) {
    return exp_of_negative(logit - most);
}
KH_FN double squared_deviation(double score, double centre) {
    return (score - centre) * (score - centre);
}
KH_FN float expected_share(double logit, const RankedAgainst& of) {
    return static_cast<float>(expected_weight(logit, of.centre) / of.spread);
}
KH_FN float tri_deviation(double score, const RankedAgainst& of) {
    return static_cast<float>((score - of.centre) / of.spread);
}

}  // namespace keyhole
