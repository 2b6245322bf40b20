#include "engine/backend/cpu/integer_weights.h"

#include "engine/base/index.h"
#include "engine/base/large_pages.h"
#include "engine/base/load_listener.h"
#include "engine/base/mapping_guard.h"
#include "engine/base/reserved_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace keyhole::cpu {

namespace {

constexpr std::int64_t kLineBytes = 64;

std::int64_t whole_lines(std::int64_t n_bytes) {
    return (n_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

/// Returns the quantised matrices that products read, not those whose rows are only looked up.
std::vector<Weight> matrices_of(const Model& model, const IntegerWeights* base) {
    const ModelWeights& weights = model.weights();
    std::vector<Weight> matrices;
    visit_weights(weights, [&](const Weight& w) {
        const bool looked_up = w.data == weights.position_embedding.data ||
                               (w.data == weights.embedding.data && w.data != weights.output.data);
        if (!looked_up && can_be_laid(w) && (base == nullptr || base->find(w) == nullptr))
            matrices.push_back(w);
    });
    return matrices;
}

}  // namespace

IntegerWeights::IntegerWeights(const Model& model, ThreadPool& pool,
                               std::shared_ptr<const IntegerWeights> base)
    : base_(std::move(base)) {
    const std::vector<Weight> matrices = matrices_of(model, base_.get());
    if (matrices.empty()) return;
    std::int64_t n_all = 0, n_laid = 0;
    for (const Weight& w : matrices) n_all += whole_lines(laid_bytes(w));
    pages_ = pages_for(to_index(n_all) + kLargePage, "the weights for products in integers");
    ask_for_large_pages(pages_.as<const std::byte>());
    // From the first large page on.
    const std::span<std::byte> all = pages_.as<std::byte>();
    const auto address = reinterpret_cast<std::uintptr_t>(all.data());
    std::byte* to = all.data() + (kLargePage - address % kLargePage) % kLargePage;
    for (const Weight& w : matrices) {
        LaidMatrix& matrix = laid_[w.data] = {w.dtype, to, w.rows, w.cols};
        lay(w, matrix, pool);
        to += whole_lines(laid_bytes(w));
        n_laid += whole_lines(laid_bytes(w));
        LoadListener::tell(static_cast<double>(n_laid) / static_cast<double>(n_all));
    }
}

void IntegerWeights::lay(const Weight& weight, LaidMatrix& to, ThreadPool& pool) const {
    const std::int64_t n_groups = to.n_groups();
    auto* const data = const_cast<std::byte*>(to.data);
    constexpr std::int64_t kGroups = 8;
    pool.parallel_for((n_groups + kGroups - 1) / kGroups, [&](std::int64_t chunk, int) {
        lay_groups(weight, chunk * kGroups, std::min(n_groups, (chunk + 1) * kGroups), data);
    });
    give_back_mapped({static_cast<const std::byte*>(weight.data), to_index(stored_bytes(weight))});
}

const LaidMatrix* IntegerWeights::find(const Weight& weight) const {
    if (const auto found = laid_.find(weight.data); found != laid_.end()) return &found->second;
    return base_ != nullptr ? base_->find(weight) : nullptr;
}

std::string IntegerWeights::text() const {
    if (empty()) return {};
    return fmt::format("{:.0f} MB of weights laid for products in integers ({}), instead of the file's pages",
                       1e-6 * static_cast<double>(pages_.size_bytes()), integer_path_name(path_));
}

std::shared_ptr<const IntegerWeights> integer_weights_of(const std::shared_ptr<const Model>& model,
                                                         ThreadPool& pool,
                                                         std::shared_ptr<const IntegerWeights> base) {
    static std::mutex mutex;
    static std::vector<std::pair<std::weak_ptr<const Model>, std::weak_ptr<const IntegerWeights>>> known;
    const std::lock_guard lock(mutex);
    std::erase_if(known, [](const auto& one) { return one.first.expired() || one.second.expired(); });
    for (const auto& [of, weights] : known)
        if (of.lock() == model)
            if (auto shared = weights.lock()) return shared;
    auto made = std::make_shared<const IntegerWeights>(*model, pool, std::move(base));
    known.emplace_back(model, made);
    return made;
}

}  // namespace keyhole::cpu
