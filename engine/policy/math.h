/// The maths of scoring, pure and without state, for host and device. Any thread. Knows parameters only.
/// The CPU backend calls it in backend/cpu, the CUDA twins in backend/cuda.
#pragma once

#include "engine/base/host_device.h"
#include "engine/base/philox.h"
#include "engine/policy/params.h"

#include <cmath>

namespace keyhole {

/// In place of a token's `wvnorm`, which is no less than 0, until it is computed.
inline constexpr float kReachDue = -1;

/// Mean and standard deviation of Gumbel(0, 1). The Gaussian and constant noises of Keyformer's table 4 are
/// matched to them.
inline constexpr float kGumbelMean = 0.57721566f;
inline constexpr float kGumbelStd = 1.28254983f;

/// Returns zeta of Keyformer's equation for (layer, query head, row, position). With NoiseDraw::token the
/// row has no effect. The Philox counter identifies the draw, so that order, batch, device and threads have
/// no effect.
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

/// Returns the exponent of the score softmax: (logit + gain * noise) / tau, before the maximum is
/// subtracted.
KH_FN float tempered_logit(float logit, float gain, float noise, float tau) {
    return add(logit, mul(gain, noise)) / tau;
}

/// Returns the updated score. weight: Keyformer's damping, 1 elsewhere.
///     score <- alpha * score + weight * p      A2SF, equation (6)
KH_FN float folded_score(float score, float alpha, float weight, float p) {
    return add(mul(alpha, score), mul(weight, p));
}

/// Returns a gap between neighbouring kept positions as TOVA's extrapolation shortens it (released code,
/// branch position_encoding_compression): g up to T = 10, else ceil(T + ln(ln(g - T + e))). The paper
/// prints ln(ln g).
KH_FN int compressed_gap(int gap) {
    if (gap <= 10) return gap;
    return static_cast<int>(ceil(10.0 + log(log(static_cast<double>(gap) - 10.0 + 2.718281828459045))));
}

}  // namespace keyhole
