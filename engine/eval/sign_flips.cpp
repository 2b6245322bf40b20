#include "engine/eval/sign_flips.h"

#include "engine/base/error.h"
#include "engine/base/philox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace keyhole {

namespace {

constexpr std::size_t kMostOfAll = 13;  // 4096 flips, as signs and their reverse are one
constexpr std::uint32_t kFlips = 4096;
constexpr std::uint64_t kSeed = 0x5f11b5;
constexpr double kRounding = 1e-9;  // equal sums in another order

/// Gains over the length of their comparison, [sample][comparison]; samples with zeros alone are left out.
std::vector<std::vector<double>> telling_rows(std::span<const Gains> comparisons) {
    const std::size_t n = comparisons.empty() ? 0 : comparisons.front().size();
    std::vector<std::vector<double>> rows(n, std::vector<double>(comparisons.size(), 0));
    for (std::size_t j = 0; j < comparisons.size(); ++j) {
        KH_ASSERT(comparisons[j].size() == n, "comparison {} has {} samples, not {}", j,
                  comparisons[j].size(), n);
        double squares = 0;
        for (const double gain : comparisons[j]) squares += std::isfinite(gain) ? gain * gain : 0;
        if (!(squares > 0)) continue;
        const double unit = 1 / std::sqrt(static_cast<double>(n) * squares);
        for (std::size_t i = 0; i < n; ++i)
            if (std::isfinite(comparisons[j][i])) rows[i][j] = comparisons[j][i] * unit;
    }
    std::erase_if(rows, [](const std::vector<double>& row) {
        return std::ranges::all_of(row, [](double gain) { return gain == 0; });
    });
    return rows;
}

/// The signs of the samples, flip by flip. Flip 0 changes nothing; the first sample keeps its sign in all.
class Signs {
  public:
    explicit Signs(std::size_t n_rows) : all_(n_rows <= kMostOfAll), signs_(n_rows, 1) {}
    std::uint32_t n_flips() const { return !all_ ? kFlips : signs_.empty() ? 1 : 1U << (signs_.size() - 1); }
    const std::vector<double>& of(std::uint32_t flip) {
        PhiloxCounter drawn{};
        for (std::size_t row = 1; row < signs_.size(); ++row) {
            const auto bit = static_cast<std::uint32_t>(row - 1);
            if (!all_ && bit % 128 == 0) drawn = philox4x32_10({{flip, bit / 128, 0, 0}}, kSeed);
            const std::uint32_t bits = all_ ? flip : drawn.x[bit / 32 % 4];
            signs_[row] = flip > 0 && (bits >> (bit % 32) & 1U) != 0 ? -1 : 1;
        }
        return signs_;
    }

  private:
    bool all_;
    std::vector<double> signs_;
};

double mean_of(std::span<const double> leads) {
    double sum = 0;
    for (const double lead : leads) sum += lead;
    return leads.empty() ? 0 : sum / static_cast<double>(leads.size());
}

/// Returns the point that a standard normal value is below with probability p, from 0.5 on.
double normal_point(double p) {
    double low = 0, high = 40;
    for (int i = 0; i < 100; ++i) {
        const double middle = (low + high) / 2;
        (std::erfc(-middle / std::numbers::sqrt2) / 2 < p ? low : high) = middle;
    }
    return low;
}

/// Sets how far leads spread when the signs of all samples are flipped.
void note_spreads(const std::vector<std::vector<double>>& rows, SignFlips& found) {
    double together = 0;
    std::vector<double> squares(found.comparisons.size(), 0);
    for (const std::vector<double>& row : rows) {
        for (std::size_t j = 0; j < row.size(); ++j) squares[j] += row[j] * row[j];
        together += mean_of(row) * mean_of(row);
    }
    for (std::size_t j = 0; j < squares.size(); ++j) found.comparisons[j].spread = std::sqrt(squares[j]);
    found.together.spread = std::sqrt(together);
}

}  // namespace

SignFlips sign_flips(std::span<const Gains> comparisons) {
    const std::size_t n_pairs = comparisons.size();
    const std::vector<std::vector<double>> rows = telling_rows(comparisons);
    Signs signs(rows.size());
    SignFlips found;
    found.comparisons.resize(n_pairs);
    found.n_telling = static_cast<int>(rows.size());
    std::vector<double> leads(n_pairs);
    std::vector<std::uint32_t> as_large(n_pairs, 0);
    std::uint32_t together_as_large = 0;
    for (std::uint32_t flip = 0; flip < signs.n_flips(); ++flip) {
        std::fill(leads.begin(), leads.end(), 0.0);
        const std::vector<double>& sign = signs.of(flip);
        for (std::size_t i = 0; i < rows.size(); ++i)
            for (std::size_t j = 0; j < n_pairs; ++j) leads[j] += sign[i] * rows[i][j];
        const double mean = mean_of(leads);
        if (flip == 0) {
            for (std::size_t j = 0; j < n_pairs; ++j) found.comparisons[j].lead = leads[j];
            found.together.lead = mean;
        }
        double most = 0;
        for (const double lead : leads) most = std::max(most, std::abs(lead));
        for (std::size_t j = 0; j < n_pairs; ++j)
            as_large[j] += most >= std::abs(found.comparisons[j].lead) - kRounding ? 1 : 0;
        together_as_large += std::abs(mean) >= std::abs(found.together.lead) - kRounding ? 1 : 0;
    }
    const double all = signs.n_flips();
    for (std::size_t j = 0; j < n_pairs; ++j) found.comparisons[j].p = as_large[j] / all;
    found.together.p = together_as_large / all;
    note_spreads(rows, found);
    return found;
}

std::optional<int> samples_needed(double z, int n, int n_comparisons) {
    constexpr double kPower = 0.8, kMost = 1e6;
    if (!std::isfinite(z) || !(std::abs(z) > 0)) return std::nullopt;
    const double wanted = normal_point(1 - kSureP / 2 / std::max(1, n_comparisons)) + normal_point(kPower);
    const double needed = std::max<double>(kLeastSamples, n * (wanted / z) * (wanted / z));
    if (needed > kMost) return std::nullopt;
    const double unit = std::max(1.0, std::pow(10, std::floor(std::log10(needed)) - 1));
    return static_cast<int>(std::ceil(needed / unit) * unit);
}

std::string needed_text(const std::optional<int>& n, double lead, std::string_view samples) {
    if (std::abs(lead) <= kRounding) return fmt::format("these {} show no difference", samples);
    if (!n) return fmt::format("the difference is too small to be decided by a million {}", samples);
    return fmt::format("about {} {} would decide it in four of five cases, if the difference stays as it is",
                       *n, samples);
}

}  // namespace keyhole
