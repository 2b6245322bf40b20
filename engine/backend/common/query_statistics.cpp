#include "engine/backend/common/query_statistics.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace keyhole {
namespace {

/// The mean of the rotations at several positions, with the rotary's magnitude: a cosine and a sine a pair.
struct MeanRotation {
    const Rotary* rotary;
    std::vector<double> cosine, sine;

    /// x <- M x
    void turn(double* x) const {
        for (std::size_t f = 0; f < cosine.size(); ++f) {
            const auto [i, j] = rotated_channels(*rotary, f);
            const double a = x[i], b = x[j];
            x[i] = cosine[f] * a - sine[f] * b;
            x[j] = sine[f] * a + cosine[f] * b;
        }
    }
};

/// positions: n of them, the i-th is position_of(i); n_tokens: of the text so far.
template <class PositionOf>
MeanRotation mean_rotation(const Rotary* rotary, int n_tokens, int n, PositionOf position_of) {
    MeanRotation mean{rotary, std::vector<double>(n_rotated_pairs(rotary)),
                      std::vector<double>(n_rotated_pairs(rotary))};
    if (rotary == nullptr) return mean;
    const std::vector<double> frequencies =
        rotary->changes_with_length() ? rotary->frequencies_for(n_tokens) : rotary->inverse_frequency;
    for (std::size_t f = 0; f < mean.cosine.size(); ++f) {
        for (int i = 0; i < n; ++i) {
            const double angle = position_of(i) * frequencies[f];
            mean.cosine[f] += std::cos(angle);
            mean.sine[f] += std::sin(angle);
        }
        const double share = static_cast<double>(rotary->magnitude) / n;
        mean.cosine[f] *= share;
        mean.sine[f] *= share;
    }
    return mean;
}

std::vector<float> unknown(std::size_t n) {
    return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

/// Returns M C M^T.
std::vector<double> turned_covariance(const MeanRotation& turn, std::vector<double> c, std::size_t d) {
    const auto transpose = [&] {
        for (std::size_t i = 0; i < d; ++i)
            for (std::size_t j = 0; j < i; ++j) std::swap(c[i * d + j], c[j * d + i]);
    };
    for (int side = 0; side < 2; ++side) {  // the rows of C turn, then those of its transpose
        for (std::size_t i = 0; i < d; ++i) turn.turn(c.data() + i * d);
        transpose();
    }
    return c;
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

std::vector<float> expected_attention(const RankedKeys& of, const QueryMoments& queries, int row, int ahead,
                                      int sinks, double scale) {
    const std::size_t n = of.positions.size(), d = to_index(of.head_dim);
    if (queries.n == 0) return unknown(n);
    const MeanRotation turn =
        mean_rotation(of.rotary, row + 1, ahead, [row](int i) { return row + 1.0 + i; });
    std::vector<double> mean = queries.mean, x(n), product(d);
    turn.turn(mean.data());
    const std::vector<double> covariance = turned_covariance(turn, queries.covariance, d);
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (of.positions[i] < sinks) continue;
        const float* key = of.keys.data() + i * d;
        std::fill(product.begin(), product.end(), 0.0);
        for (std::size_t c = 0; c < d; ++c) {
            const double* from = covariance.data() + c * d;
            for (std::size_t e = 0; e < d; ++e) product[e] += double{key[c]} * from[e];
        }
        double linear = 0, square = 0;
        for (std::size_t c = 0; c < d; ++c) {
            linear += double{key[c]} * mean[c];
            square += double{key[c]} * product[c];
        }
        x[i] = scale * linear + scale * scale / 2 * square;
        most = std::max(most, x[i]);
    }
    std::vector<float> out(n, 0);
    for (std::size_t i = 0; i < n; ++i)
        if (of.positions[i] >= sinks) sum += std::exp(x[i] - most);
    for (std::size_t i = 0; i < n; ++i)
        if (of.positions[i] >= sinks) out[i] = static_cast<float>(std::exp(x[i] - most) / sum);
    return out;
}

std::vector<float> tri_scores(const RankedKeys& of, const QueryMoments& queries, int row,
                              std::span<const std::uint8_t> competes, int n_offsets) {
    constexpr double kLeastSpread = 1e-6;  // of the scores
    const std::size_t n = of.positions.size(), d = to_index(of.head_dim);
    if (queries.n == 0) return unknown(n);
    const MeanRotation turn =
        mean_rotation(of.rotary, row + 1, n_offsets, [row](int i) { return row + 1.0 + (1 << i); });
    std::vector<double> mean = queries.mean, lacks(n_rotated_pairs(of.rotary)), score(n);
    for (std::size_t f = 0; f < lacks.size(); ++f) {
        const auto [i, j] = rotated_channels(*of.rotary, f);
        lacks[f] = (queries.lengths[f] - std::hypot(mean[i], mean[j])) * double{of.rotary->magnitude};
    }
    turn.turn(mean.data());
    double sum = 0, square = 0, n_competing = 0;
    for (std::size_t p = 0; p < n; ++p) {
        const float* key = of.keys.data() + p * d;
        for (std::size_t c = 0; c < d; ++c) score[p] += double{key[c]} * mean[c];
        for (std::size_t f = 0; f < lacks.size(); ++f) {
            const auto [i, j] = rotated_channels(*of.rotary, f);
            score[p] += lacks[f] * std::hypot(double{key[i]}, double{key[j]});
        }
        if (competes[p] == 0) continue;
        sum += score[p];
        ++n_competing;
    }
    const double centre = n_competing > 0 ? sum / n_competing : 0;
    for (std::size_t p = 0; p < n; ++p)
        if (competes[p] != 0) square += (score[p] - centre) * (score[p] - centre);
    const double spread = n_competing > 0 ? std::max(std::sqrt(square / n_competing), kLeastSpread) : 1;
    std::vector<float> out(n);
    for (std::size_t p = 0; p < n; ++p) out[p] = static_cast<float>((score[p] - centre) / spread);
    return out;
}

}  // namespace keyhole
