#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns the smallest of 1, 2, 5 times a power of ten that is >= x.
double round_up(double x) {
    const double power = std::pow(10.0, std::floor(std::log10(x)));
    for (double m : {1.0, 2.0, 5.0})
        if (m * power >= x * (1 - 1e-9)) return m * power;
    return 10 * power;
}

constexpr int kMostDigits = 15;  // further ones show how a double rounds

/// more_digits: beyond the usual number.
std::string tick_text(double value, int more_digits) {
    if (value == 0) return "0";
    const double magnitude = std::abs(value);
    const bool plain = magnitude >= 1e-3 && magnitude < 1e6;
    std::string text = fmt::format("{:.{}g}", value, std::min((plain ? 6 : 3) + more_digits, kMostDigits));
    if (plain) return text;
    // 1e-07 -> 1e-7
    const auto e = text.find('e');
    if (e != std::string::npos && e + 2 < text.size() && text[e + 2] == '0') text.erase(e + 2, 1);
    if (e != std::string::npos && text[e + 1] == '+') text.erase(e + 1, 1);
    return text;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int most) {
    if (!(high > low) || !std::isfinite(low) || !std::isfinite(high)) return {low};
    const double step = round_up((high - low) / std::max(most - 1, 1));
    std::vector<double> ticks;
    const double slack = step * 1e-6;
    for (auto i = static_cast<long long>(std::ceil((low - slack) / step));
         static_cast<double>(i) * step <= high + slack; ++i)
        ticks.push_back(static_cast<double>(i) * step);
    if (static_cast<int>(ticks.size()) > most && ticks.size() > 2) ticks.pop_back();
    return ticks;
}

std::vector<double> log_ticks(double low, double high, int most) {
    if (!(low > 0) || !(high > low)) return {low};
    const int first = static_cast<int>(std::ceil(std::log10(low) - 1e-6)),
              last = static_cast<int>(std::floor(std::log10(high) + 1e-6));
    std::vector<double> ticks;
    if (last - first < 1) {
        for (int e = first - 1; e <= last + 1; ++e)
            for (double m : {1.0, 2.0, 5.0}) {
                const double value = m * std::pow(10.0, e);
                if (value >= low * (1 - 1e-6) && value <= high * (1 + 1e-6)) ticks.push_back(value);
            }
        return ticks;
    }
    const int stride = (last - first) / std::max(most, 1) + 1;
    for (int e = last; e >= first; e -= stride) ticks.push_back(std::pow(10.0, e));
    std::reverse(ticks.begin(), ticks.end());
    return ticks;
}

std::vector<int> index_ticks(int first, int n, int least_gap) {
    const int step = std::max(1, static_cast<int>(round_up(std::max(least_gap, 1))));
    std::vector<int> ticks;
    for (int i = (first + step - 1) / step * step; i < first + n; i += step) ticks.push_back(i);
    return ticks;
}

std::vector<Tick> labelled(const std::vector<double>& ticks) {
    std::vector<Tick> out;
    for (int more = 0; more < kMostDigits; ++more) {
        out.clear();
        for (const double value : ticks) out.push_back({value, tick_text(value, more)});
        const auto alike = [](const Tick& a, const Tick& b) { return a.text == b.text; };
        if (std::adjacent_find(out.begin(), out.end(), alike) == out.end()) break;
    }
    return out;
}

}  // namespace keyhole
