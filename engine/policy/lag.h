/// The arithmetic of `lag` (LagKV) in double: pure, for host and device, with the same bits. Any thread.
#pragma once

#include "engine/base/host_device.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace keyhole {

/// Returns e^x for x <= 0 to within 2 units of the last place; 0 below -700. The libraries of host and device
/// round theirs in other ways.
KH_FN double exp_of_negative(double x) {
    if (x != x) return x;
    if (x < -700.0) return 0;
    // x = k ln 2 + r, with ln 2 in two parts so that r keeps its bits.
    const double k = floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10;
    double p = 1;
    for (int n = 14; n > 0; --n) p = 1.0 + p * r * (1.0 / n);  // unrolled, these are constants
    const std::uint64_t bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(k) + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

/// Returns the deviation over channels of a token's row(c), each channel scaled by the range from low(c) to
/// high(c) that it has in the next partition.
template <class Row, class Low, class High>
KH_FN double scaled_deviation(int n_channels, Row row, Low low, High high) {
    const auto scaled = [&](int c) {
        const double least = low(c), most = high(c);
        return (static_cast<double>(row(c)) - least) / (most - least);
    };
    double mean = 0, square = 0;
    for (int c = 0; c < n_channels; ++c) mean += scaled(c);
    mean /= n_channels;
    for (int c = 0; c < n_channels; ++c) square += (scaled(c) - mean) * (scaled(c) - mean);
    return sqrt(square / (n_channels - 1.0));
}

/// What a softmax over the tokens of a partition divides by.
struct LagTotal {
    double most, total;
};
/// deviation(i): of n tokens.
template <class Deviation>
KH_FN LagTotal lag_total(int n, Deviation deviation) {
    LagTotal out{-INFINITY, 0};
    for (int i = 0; i < n; ++i) out.most = out.most < deviation(i) ? deviation(i) : out.most;
    for (int i = 0; i < n; ++i) out.total += exp_of_negative(deviation(i) - out.most);
    return out;
}
KH_FN double lag_share(double deviation, const LagTotal& of) {
    return exp_of_negative(deviation - of.most) / of.total;
}

}  // namespace keyhole
