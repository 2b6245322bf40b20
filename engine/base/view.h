/// A view of a dense row-major tensor from two dimensions up: pointer and extents, no ownership.
/// One dimension is std::span. Any thread.
#pragma once

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace keyhole {

template <class T, std::size_t Rank>
class TensorView {
  public:
    using Shape = std::array<std::int64_t, Rank>;

    TensorView() : data_(nullptr), shape_{} {}
    TensorView(T* data, Shape shape) : data_(data), shape_(shape) {}

    /// Converts a view of mutable data to a view of const data.
    template <class U>
    TensorView(const TensorView<U, Rank>& other)  // NOLINT: implicit on purpose
        requires(std::is_same_v<const U, T>)
        : data_(other.data()), shape_(other.shape()) {}

    T* data() const { return data_; }
    const Shape& shape() const { return shape_; }
    std::int64_t extent(std::size_t dimension) const { return shape_[dimension]; }
    std::int64_t size() const {
        std::int64_t n = 1;
        for (std::int64_t e : shape_) n *= e;
        return n;
    }

    template <class... Index>
    requires(sizeof...(Index) == Rank) T& operator()(Index... index) const {
        return data_[offset({static_cast<std::int64_t>(index)...})];
    }

    /// Returns the last dimension at the given leading indices.
    template <class... Index>
    requires(sizeof...(Index) == Rank - 1) std::span<T> row(Index... index)
    const {
        return {data_ + offset({static_cast<std::int64_t>(index)..., std::int64_t{0}}),
                to_index(shape_[Rank - 1])};
    }

  private:
    std::int64_t offset(Shape index) const {
        std::int64_t at = 0;
        for (std::size_t i = 0; i < Rank; ++i) at = at * shape_[i] + index[i];
        return at;
    }

    T* data_;
    Shape shape_;
};

}  // namespace keyhole
