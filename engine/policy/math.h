/// The maths of scoring, pure and without state, for host and device. Twins: backend/cpu/score.cpp, backend/cuda.
#pragma once

#include "engine/base/host_device.h"
#include "engine/base/philox.h"
#include "engine/policy/params.h"

#include <cmath>

namespace keyhole {

/// Mean and standard deviation of Gumbel(0, 1): what the Gaussian and constant noises of Keyformer's table 4 are matched to.
inline constexpr float kGumbelMean = 0.57721566f;
inline constexpr float kGumbelStd = 1.28254983f;

/// zeta of Keyformer's equation for (layer, query head, row, position). Draws per token ignore the row.
/// The counter names what is drawn, so order, batch, device and threads do not matter.
KH_FN float noise_at(NoiseKind kind, NoiseDraw draw, std::uint64_t seed, int layer, int head, int row,
                     int position) {
    if (kind == NoiseKind::none) return 0.0f;
    if (kind == NoiseKind::constant) return kGumbelMean;
    const PhiloxCounter bits =
        philox4x32_10({{static_cast<std::uint32_t>(position),
                        draw == NoiseDraw::row ? static_cast<std::uint32_t>(row) : 0xffffffffu,
                        static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(head)}},
                      seed);
    const float u = uniform_from_bits(bits.x[0]);
    if (kind == NoiseKind::gumbel) return -logf(-logf(u));
    const float v = uniform_from_bits(bits.x[1]);  // Box-Muller
    return add(kGumbelMean, mul(kGumbelStd, mul(sqrtf(mul(-2.0f, logf(u))), cosf(mul(6.2831853f, v)))));
}

/// Exponent of the score softmax: (logit + gain * noise) / tau, before the maximum is taken off.
KH_FN float tempered_logit(float logit, float gain, float noise, float tau) {
    return add(logit, mul(gain, noise)) / tau;
}

/// score <- alpha * score + weight * p      A2SF equation (6); weight: Keyformer's damping, 1 elsewhere
KH_FN float folded_score(float score, float alpha, float weight, float p) {
    return add(mul(alpha, score), mul(weight, p));
}

/// A gap between neighbouring kept positions as TOVA's extrapolation shortens it (released code, branch
/// position_encoding_compression): g up to T = 10, else ceil(T + ln(ln(g - T + e))). The paper prints ln(ln g).
KH_FN int compressed_gap(int gap) {
    if (gap <= 10) return gap;
    return static_cast<int>(ceil(10.0 + log(log(static_cast<double>(gap) - 10.0 + 2.718281828459045))));
}

}  // namespace keyhole
