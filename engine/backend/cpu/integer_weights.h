/// The quantised matrices of a model, laid for products in integers (common/integer_products.h). The pages of
/// the mapped file are given back as they are laid, so that memory holds the weights once. Made on the engine
/// thread, const afterwards.
#pragma once

#include "engine/backend/common/integer_products.h"
#include "engine/base/mapped_file.h"
#include "engine/base/threads.h"
#include "engine/model/model.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace keyhole::cpu {

class IntegerWeights {
  public:
    /// Lays the matrices that products read and that `base`, if any, has not laid, and tells the listener of
    /// this thread how far it is (base/load_listener.h).
    IntegerWeights(const Model& model, ThreadPool& pool, std::shared_ptr<const IntegerWeights> base);

    /// Returns the laid matrix of a weight, null where its products are computed in floats.
    const LaidMatrix* find(const Weight& weight) const;
    /// Returns the bytes of the matrices that it has laid, without those of `base`.
    std::int64_t bytes() const { return static_cast<std::int64_t>(pages_.size_bytes()); }
    bool empty() const { return laid_.empty() && (base_ == nullptr || base_->empty()); }
    IntegerPath path() const { return path_; }
    /// Whether products with many inputs are faster than those in floats too: with VNNI.
    bool suits_prompts() const { return path_ >= IntegerPath::avx_vnni; }
    /// Says in a sentence what is laid; empty where nothing is.
    std::string text() const;

  private:
    void lay(const Weight& weight, LaidMatrix& to, ThreadPool& pool) const;

    IntegerPath path_ = best_integer_path();
    std::shared_ptr<const IntegerWeights> base_;
    Pages pages_;
    std::unordered_map<const void*, LaidMatrix> laid_;
};

/// Returns the laid weights of a model, the same for all backends that compute it.
std::shared_ptr<const IntegerWeights> integer_weights_of(const std::shared_ptr<const Model>& model,
                                                         ThreadPool& pool,
                                                         std::shared_ptr<const IntegerWeights> base = {});

}  // namespace keyhole::cpu
