/// Memory with a name for messages, and address space whose memory is taken later, or never. Any thread;
/// knows base only.
#pragma once

#include "engine/base/mapped_file.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace keyhole {

/// Takes pages; the Error(no_memory) says what they were for, such as "the KV cache of a lane".
Pages pages_for(std::size_t n_bytes, std::string_view what);

/// Address space for memory that is taken later, or never: its place is known at once. Throws
/// Error(no_memory) with what it is for.
class ReservedPages {
  public:
    ReservedPages(std::size_t n_bytes, std::string what);
    ~ReservedPages();
    ReservedPages(ReservedPages&& other) noexcept;
    ReservedPages& operator=(ReservedPages&&) = delete;

    const void* address() const { return data_; }
    std::size_t size_bytes() const { return size_; }
    /// Takes the memory, zeroed. Before this call nothing at the address may be read.
    void* take();

  private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
    std::string what_;
};

}  // namespace keyhole
