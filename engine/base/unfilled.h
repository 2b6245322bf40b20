/// For vectors that are written as a whole right after they got their size: resize() sets no values. A pass of zeros first would have
/// one thread fetch all their pages from the system.
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
