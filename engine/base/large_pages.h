/// Moves memory to pages of 2 MB under its own addresses. A processor translates such addresses with fewer
/// look-ups, so that some read long arrays faster. Any thread; other threads may read the memory meanwhile.
#pragma once

#include <cstddef>
#include <span>

namespace keyhole {

inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

/// Returns whether the system gives large pages to who asks.
bool has_large_pages();

/// Returns the part of the memory that is whole large pages.
std::span<const std::byte> whole_large_pages(std::span<const std::byte> memory);

/// Asks for large pages where memory is written for the first time; a hint.
void ask_for_large_pages(std::span<const std::byte> memory);

/// Copies whole_large_pages(memory) to large pages and puts these in its place: every byte keeps its
/// address and value. A mapped file is then no longer read there. Returns false and changes nothing where
/// the system gives no large pages (Linux: transparent_hugepage is "never") or no memory.
bool move_to_large_pages(std::span<const std::byte> memory);

}  // namespace keyhole
