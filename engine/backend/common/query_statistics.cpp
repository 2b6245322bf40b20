#include "engine/backend/common/query_statistics.h"

#include "engine/base/index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace keyhole {
namespace {

std::vector<float> unknown(std::size_t n) {
    return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

/// part(k): a double.
template <class Part>
double sum_in_parts(Part part) {
    std::array<double, kQueryParts> parts;
    for (int k = 0; k < kQueryParts; ++k) parts[to_index(k)] = part(k);
    return sum_of_parts([&](int k) { return parts[to_index(k)]; });
}

}  // namespace

void add_query_sinks(const ResolvedPolicy& policy, int n, std::vector<int>& sinks) {
    (void)policy.any([&](const ResolvedPolicy& one) {
        const bool requested =
            one.names_queries() && !one.calibration && (one.exceeded(n, n - 1) || policy.kept_queries() > 0);
        if (requested && std::find(sinks.begin(), sinks.end(), one.sinks) == sinks.end())
            sinks.push_back(one.sinks);
        return false;
    });
}

RotatedPairs rotated_pairs(const Rotary* rotary) {
    if (rotary == nullptr) return {};
    return {rotary->dims / 2, rotary->interleaved ? 1 : 0};
}

MeanTurn::MeanTurn(const Rotary* rotary, int n_tokens, std::span<const double> offsets) {
    if (rotary == nullptr) return;
    frequencies_ =
        rotary->changes_with_length() ? rotary->frequencies_for(n_tokens) : rotary->inverse_frequency;
    magnitude_ = static_cast<double>(rotary->magnitude);
    const std::size_t n = n_rotated_pairs(rotary);
    mean_.resize(2 * n);
    for (std::size_t f = 0; f < n; ++f) {
        for (const double offset : offsets) {
            mean_[f] += std::cos(offset * frequencies_[f]);
            mean_[n + f] += std::sin(offset * frequencies_[f]);
        }
        mean_[f] /= static_cast<double>(offsets.size());
        mean_[n + f] /= static_cast<double>(offsets.size());
    }
}

std::vector<double> MeanTurn::at(double place) const {
    const std::size_t n = mean_.size() / 2;
    std::vector<double> turn(2 * n);
    for (std::size_t f = 0; f < n; ++f) {
        const double cosine = std::cos(place * frequencies_[f]), sine = std::sin(place * frequencies_[f]);
        turn[f] = magnitude_ * (cosine * mean_[f] - sine * mean_[n + f]);
        turn[n + f] = magnitude_ * (sine * mean_[f] + cosine * mean_[n + f]);
    }
    return turn;
}

std::vector<double> expected_offsets(int ahead) {
    std::vector<double> offsets;
    for (int i = 0; i < ahead; ++i) offsets.push_back(i);
    return offsets;
}

std::vector<double> tri_offsets(int n_offsets) {
    std::vector<double> offsets;
    for (int i = 0; i < n_offsets; ++i) offsets.push_back(1 << i);
    return offsets;
}

std::vector<double> lacking_lengths(const QueryMoments& queries, const Rotary* rotary) {
    std::vector<double> lacks(n_rotated_pairs(rotary));
    for (std::size_t f = 0; f < lacks.size(); ++f) {
        const auto [i, j] = rotated_channels(*rotary, f);
        lacks[f] = (queries.lengths[f] - std::hypot(queries.mean[i], queries.mean[j])) *
                   static_cast<double>(rotary->magnitude);
    }
    return lacks;
}

TurnedKeys turned_keys(const RankedKeys& of, int row, std::span<const double> offsets) {
    const std::vector<double> turn = MeanTurn(of.rotary, row + 1, offsets).at(row + 1.0);
    const RotatedPairs pairs = rotated_pairs(of.rotary);
    TurnedKeys out{of, std::vector<double>(of.positions.size() * to_index(of.head_dim))};
    double* to = out.turned.data();
    for (std::size_t i = 0; i < of.positions.size(); ++i) {
        const float* key = of.keys.data() + i * to_index(of.head_dim);
        for (int c = 0; c < of.head_dim; ++c)
            *to++ = turned_back(
                pairs, turn.data(), [&](int channel) { return key[channel]; }, c);
    }
    return out;
}

std::vector<float> expected_attention(const TurnedKeys& keys, const QueryMoments& queries, int sinks,
                                      double scale) {
    const RankedKeys& of = keys.of;
    const std::size_t d = to_index(of.head_dim);
    const int n = static_cast<int>(of.positions.size());
    if (queries.n == 0) return unknown(to_index(n));
    const auto counts = [&](int i) { return of.positions[to_index(i)] >= sinks; };
    std::vector<double> logits(to_index(n)), product(d);
    for (int i = 0; i < n; ++i) {
        if (!counts(i)) continue;
        const double* turned = keys.turned.data() + to_index(i) * d;
        std::fill(product.begin(), product.end(), 0.0);
        for (std::size_t c = 0; c < d; ++c)
            for (std::size_t e = 0; e < d; ++e) product[e] += turned[c] * queries.covariance[c * d + e];
        logits[to_index(i)] = sum_in_parts([&](int k) {
            return expected_part(
                k, of.head_dim, scale, [&](int e) { return turned[e]; },
                [&](int e) { return queries.mean[to_index(e)]; },
                [&](int e) { return product[to_index(e)]; });
        });
    }
    const auto logit = [&](int i) { return logits[to_index(i)]; };
    RankedAgainst against;
    against.centre = largest_of_parts([&](int k) { return largest_part(k, n, logit, counts); });
    const auto weight = [&](int i) { return expected_weight(logit(i), against.centre); };
    against.spread = sum_in_parts([&](int k) { return sum_part(k, n, weight, counts); });
    std::vector<float> out(to_index(n), 0);
    for (int i = 0; i < n; ++i)
        if (counts(i)) out[to_index(i)] = expected_share(logit(i), against);
    return out;
}

std::vector<float> tri_scores(const TurnedKeys& keys, const QueryMoments& queries,
                              std::span<const std::uint8_t> competes) {
    const RankedKeys& of = keys.of;
    const int n = static_cast<int>(of.positions.size());
    if (queries.n == 0) return unknown(to_index(n));
    const std::vector<double> lacks = lacking_lengths(queries, of.rotary);
    const RotatedPairs pairs = rotated_pairs(of.rotary);
    std::vector<double> scores(to_index(n));
    for (int i = 0; i < n; ++i) {
        const double* turned = keys.turned.data() + to_index(i) * to_index(of.head_dim);
        const float* key = of.keys.data() + to_index(i) * to_index(of.head_dim);
        const auto length = [&](int f) {
            return length_of_pair(
                pairs, [&](int c) { return key[c]; }, f);
        };
        scores[to_index(i)] = sum_in_parts([&](int k) {
            return tri_part(
                k, of.head_dim, pairs.n, [&](int e) { return turned[e]; },
                [&](int e) { return queries.mean[to_index(e)]; }, [&](int f) { return lacks[to_index(f)]; },
                length);
        });
    }
    const auto score = [&](int i) { return scores[to_index(i)]; };
    const auto counts = [&](int i) { return competes[to_index(i)] != 0; };
    int n_competing = 0;
    for (int i = 0; i < n; ++i) n_competing += counts(i) ? 1 : 0;
    RankedAgainst against;
    against.centre =
        centre_of_scores(sum_in_parts([&](int k) { return sum_part(k, n, score, counts); }), n_competing);
    const auto square = [&](int i) { return squared_deviation(score(i), against.centre); };
    against.spread =
        spread_of_scores(sum_in_parts([&](int k) { return sum_part(k, n, square, counts); }), n_competing);
    std::vector<float> out;
    for (int i = 0; i < n; ++i) out.push_back(tri_deviation(score(i), against));
    return out;
}

}  // namespace keyhole
