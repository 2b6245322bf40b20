/// Vectors whose resize() leaves values uninitialised. Any thread. For vectors that are fully written right
/// after they are sized: filling them with zeros first would make one thread fetch all their pages from the
/// system. Their memory may come from a source of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace keyhole {

/// Gives memory that the system alone does not, such as memory that a device copies to. give_back() may be
/// called on any thread. Vectors keep their source alive.
class MemorySource {
  public:
    virtual ~MemorySource() = default;
    /// Returns memory that is aligned for numbers of any type. Throws where there is none.
    virtual void* take(std::size_t n_bytes) = 0;
    virtual void give_back(void* data, std::size_t n_bytes) noexcept = 0;
};

/// Takes memory from a source, or from the system where there is none. Copies of a vector come from the
/// system; moved vectors keep their source.
template <class T>
class UninitialisedAllocator {
  public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    UninitialisedAllocator() = default;
    explicit UninitialisedAllocator(std::shared_ptr<MemorySource> source) : source_(std::move(source)) {}
    template <class U>
    UninitialisedAllocator(const UninitialisedAllocator<U>& other)  // NOLINT: implicit, as allocators are
        : source_(other.source()) {}
    UninitialisedAllocator select_on_container_copy_construction() const { return {}; }

    T* allocate(std::size_t n) {
        return source_ == nullptr ? std::allocator<T>().allocate(n)
                                  : static_cast<T*>(source_->take(n * sizeof(T)));
    }
    void deallocate(T* data, std::size_t n) noexcept {
        if (source_ == nullptr)
            std::allocator<T>().deallocate(data, n);
        else
            source_->give_back(data, n * sizeof(T));
    }
    template <class U>
    void construct(U* at) {
        ::new (static_cast<void*>(at)) U;
    }
    template <class U, class... Args>
    void construct(U* at, Args&&... args) {
        std::construct_at(at, std::forward<Args>(args)...);
    }
    const std::shared_ptr<MemorySource>& source() const { return source_; }
    bool operator==(const UninitialisedAllocator& other) const { return source_ == other.source_; }

  private:
    std::shared_ptr<MemorySource> source_;
};

template <class T>
using UninitialisedVector = std::vector<T, UninitialisedAllocator<T>>;

}  // namespace keyhole
