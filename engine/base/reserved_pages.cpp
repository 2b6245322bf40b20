#include "engine/base/reserved_pages.h"

#include "engine/base/error.h"
#include "engine/base/memory_words.h"

#include <sys/mman.h>

#include <string_view>
#include <utility>

namespace keyhole {

Pages pages_for(std::size_t n_bytes, std::string_view what) {
    try {
        return Pages(n_bytes);
    } catch (const Error&) {
        fail(ErrorCode::no_memory,
             "no memory for {} MiB of {}; take a smaller budget, fewer lanes or a shorter prompt",
             mebibytes(n_bytes), what);
    }
}

ReservedPages::ReservedPages(std::size_t n_bytes, std::string what) : size_(n_bytes), what_(std::move(what)) {
    if (n_bytes == 0) return;
    data_ = ::mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ != MAP_FAILED) return;
    data_ = nullptr;
    fail(ErrorCode::no_memory, "no memory for {} MiB of {}: no addresses are left (ulimit -v); {}",
         mebibytes(n_bytes), what_, kMoreRoom);
}

ReservedPages::~ReservedPages() {
    if (data_ != nullptr) ::munmap(data_, size_);
}

ReservedPages::ReservedPages(ReservedPages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      what_(std::move(other.what_)) {}

void* ReservedPages::take() {
    if (data_ != nullptr && ::mprotect(data_, size_, PROT_READ | PROT_WRITE) != 0)
        fail(ErrorCode::no_memory, "no memory for {} MiB of {}; {}", mebibytes(size_), what_, kMoreRoom);
    return data_;
}

}  // namespace keyhole
