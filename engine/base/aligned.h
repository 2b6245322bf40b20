/// Vectors that begin at a cache line. A register of 64 bytes is then loaded from one line: products of six
/// lanes take 0.8 to 0.9 of the time (tests/bench/results/2026-11-24-steps.txt). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace keyhole {

template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};
    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}  // NOLINT: implicit, as allocators are
    T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
    void deallocate(T* data, std::size_t) { ::operator delete(data, kLine); }
    bool operator==(const LineAllocator&) const { return true; }
};

using AlignedFloats = std::vector<float, LineAllocator<float>>;

/// Gives a vector at least n elements; what it had beyond stays.
template <class Vector>
void have_room(Vector& v, std::int64_t n) {
    if (v.size() < static_cast<std::size_t>(n)) v.resize(static_cast<std::size_t>(n));
}

}  // namespace keyhole
