#include "engine/backend/cpu/weight_pages.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/aligned.h"
#include "engine/base/index.h"
#include "engine/base/large_pages.h"
#include "engine/base/resource_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace keyhole::cpu {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kPart = std::size_t{32} << 20;  // moved at once; this much memory is taken twice
constexpr std::size_t kSpare = std::size_t{1} << 30;  // stays free
constexpr std::int64_t kGap = 64;                     // between tensors of a file
constexpr double kFaster = 1.05;
constexpr int kRounds = 5;

/// Returns the stretches of memory that matrices fill.
std::vector<Bytes> stretches_of(const Model& model) {
    std::vector<Bytes> all;
    visit_weights(model.weights(), [&](const Weight& w) {
        all.emplace_back(static_cast<const std::byte*>(w.data), to_index(stored_bytes(w)));
    });
    std::sort(all.begin(), all.end(), [](Bytes a, Bytes b) { return a.data() < b.data(); });
    std::vector<Bytes> joined;
    for (const Bytes next : all) {
        if (!joined.empty() && next.data() - (joined.back().data() + joined.back().size()) <= kGap) {
            const std::byte* const end =
                std::max(next.data() + next.size(), joined.back().data() + joined.back().size());
            joined.back() = {joined.back().data(), end};
            continue;
        }
        joined.push_back(next);
    }
    for (Bytes& stretch : joined) stretch = whole_large_pages(stretch);
    std::erase_if(joined, [](Bytes stretch) { return stretch.empty(); });
    return joined;
}

/// Returns the seconds of a product with these bytes as f16, by all threads.
double seconds_of_product(Bytes bytes, ThreadPool& pool) {
    constexpr std::int64_t kCols = 1024, kRows = 128;
    static const AlignedFloats x(to_index(kCols), 1.0f);
    const Weight w{DType::f16, bytes.data(), static_cast<std::int64_t>(bytes.size()) / (2 * kCols), kCols};
    AlignedFloats y(to_index(w.rows));
    const auto begin = std::chrono::steady_clock::now();
    pool.parallel_for((w.rows + kRows - 1) / kRows, [&](std::int64_t chunk, int) {
        multiply_rows(w, chunk * kRows, std::min(w.rows, (chunk + 1) * kRows), x.data(), kCols, 1, y.data(),
                      w.rows);
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

WeightPages measure_and_move(const Model& model, ThreadPool& pool) {
    WeightPages pages;
    const std::vector<Bytes> stretches = stretches_of(model);
    std::size_t total = 0;
    for (const Bytes stretch : stretches) total += stretch.size();
    const auto longest = std::max_element(stretches.begin(), stretches.end(),
                                          [](Bytes a, Bytes b) { return a.size() < b.size(); });
    if (longest == stretches.end() || longest->size() < 2 * kPart) return pages;
    const std::int64_t free_bytes = system_memory().available;
    if (free_bytes > 0 && to_index(free_bytes) < total + kSpare) return pages;

    const Bytes moved = longest->first(kPart), other = longest->subspan(kPart, kPart);
    if (!move_to_large_pages(moved)) return pages;
    double of_moved = std::numeric_limits<double>::infinity(), of_other = of_moved;
    for (int round = 0; round < kRounds; ++round) {
        of_other = std::min(of_other, seconds_of_product(other, pool));
        of_moved = std::min(of_moved, seconds_of_product(moved, pool));
    }
    pages.speed = of_other / of_moved;
    pages.moved_bytes = static_cast<std::int64_t>(kPart);
    if (pages.speed < kFaster) return pages;
    for (Bytes stretch : stretches)
        while (!stretch.empty()) {
            const Bytes part = stretch.first(std::min(stretch.size(), kPart));
            stretch = stretch.subspan(part.size());
            if (part.data() != moved.data() && move_to_large_pages(part))
                pages.moved_bytes += static_cast<std::int64_t>(part.size());
        }
    return pages;
}

}  // namespace

std::string WeightPages::text() const {
    if (speed == 0) return {};
    return fmt::format("{:.0f} MB of weights in pages of 2 MB, which are read {:.2f} times as fast as others",
                       1e-6 * static_cast<double>(moved_bytes), speed);
}

WeightPages use_large_pages(const std::shared_ptr<const Model>& model, ThreadPool& pool) {
    static std::mutex mutex;
    static std::vector<std::pair<std::weak_ptr<const Model>, WeightPages>> known;
    const std::lock_guard lock(mutex);
    std::erase_if(known, [](const auto& one) { return one.first.expired(); });
    for (const auto& [of, pages] : known)
        if (of.lock() == model) return pages;
    return known.emplace_back(model, measure_and_move(*model, pool)).second;
}

}  // namespace keyhole::cpu
