#include "engine/base/large_pages.h"

#include "engine/base/mapping_guard.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

namespace keyhole {

namespace {

bool system_has_them() {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string modes;
    return std::getline(file, modes) && modes.find("[never]") == std::string::npos;
}

std::uintptr_t aligned_up(std::uintptr_t address) {
    return (address + kLargePage - 1) / kLargePage * kLargePage;
}

}  // namespace

bool has_large_pages() {
    static const bool has_them = system_has_them();
    return has_them;
}

std::span<const std::byte> whole_large_pages(std::span<const std::byte> memory) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::uintptr_t first = aligned_up(begin), last = (begin + memory.size()) / kLargePage * kLargePage;
    if (last <= first) return {};
    return memory.subspan(first - begin, last - first);
}

void ask_for_large_pages(std::span<const std::byte> memory) {
    const std::span<const std::byte> whole = whole_large_pages(memory);
    if (!whole.empty()) ::madvise(const_cast<std::byte*>(whole.data()), whole.size(), MADV_HUGEPAGE);
}

bool move_to_large_pages(std::span<const std::byte> memory) {
    const std::span<const std::byte> whole = whole_large_pages(memory);
    if (whole.empty() || !has_large_pages()) return false;
    // One large page more, so that the copy can begin at one.
    const std::size_t reserved = whole.size() + kLargePage;
    void* const space = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return false;
    const auto begin = reinterpret_cast<std::uintptr_t>(space), copy = aligned_up(begin);
    void* const to = reinterpret_cast<void*>(copy);
    bool moved = ::madvise(to, whole.size(), MADV_HUGEPAGE) == 0;
    if (moved) {
        keep_mapped(whole.data());
        std::memcpy(to, whole.data(), whole.size());
        // The kernel exchanges the mappings in one step: a reader sees the old pages or the new ones.
        void* const here = const_cast<std::byte*>(whole.data());
        moved = ::mremap(to, whole.size(), whole.size(), MREMAP_MAYMOVE | MREMAP_FIXED, here) != MAP_FAILED;
    }
    if (!moved) {
        ::munmap(space, reserved);
        return false;
    }
    if (copy > begin) ::munmap(space, copy - begin);
    const std::uintptr_t end = copy + whole.size();
    if (begin + reserved > end) ::munmap(reinterpret_cast<void*>(end), begin + reserved - end);
    return true;
}

}  // namespace keyhole
