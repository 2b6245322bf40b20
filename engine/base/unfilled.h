/// Vectors whose resize() leaves values uninitialised. Any thread. For vectors that are fully written right
/// after they are sized: filling them with zeros first would make one thread fetch all their pages from the
/// system.
#pragma once

#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace keyhole {

template <class T>
struct UnfilledAllocator : std::allocator<T> {
    template <class U>
    struct rebind {
        using other = UnfilledAllocator<U>;
    };
    UnfilledAllocator() = default;
    template <class U>
    UnfilledAllocator(const UnfilledAllocator<U>&) {}  // NOLINT: implicit, as allocators are
    template <class U>
    void construct(U* at) {
        ::new (static_cast<void*>(at)) U;
    }
    template <class U, class... Args>
    void construct(U* at, Args&&... args) {
        std::construct_at(at, std::forward<Args>(args)...);
    }
};

template <class T>
using UnfilledVector = std::vector<T, UnfilledAllocator<T>>;

}  // namespace keyhole
