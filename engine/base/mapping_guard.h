/// Protection against files that another program truncates or writes to while they are mapped. Any thread.
///
/// A read beyond the end of a truncated file raises SIGBUS, which ends the program. The signal may come in
/// a kernel of any thread, so that no exception can replace it; a jump out of the handler would leave the
/// thread pool's counters and locks inconsistent. The handler here maps zeros over the lost part instead
/// (as libwayland does for shared buffers), and the read continues. A result that was computed from a
/// mapping is therefore valid only after check_mapping() has passed. Signals for other addresses go to the
/// previous handler.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace keyhole {

/// Registers [data, data + n_bytes), a mapping of the open file, with the handler. Duplicates the
/// descriptor.
void guard_mapping(const std::filesystem::path& path, int descriptor, const void* data, std::size_t n_bytes);
/// Unregisters a mapping; call it before the mapping ends. Does nothing for an address that is not guarded.
void release_mapping(const void* data) noexcept;

/// Returns the beginning of the guarded mapping that contains the address, or null.
const void* mapping_of(const void* address);
/// Throws Error(bad_file) with the file's name when the file of a guarded mapping was truncated or written
/// to since it was mapped. Compares size and modification time, and looks whether the handler had to map
/// zeros. A file whose name now belongs to another file counts as unchanged. Costs one system call.
void check_mapping(const void* data);

/// Gives the memory of whole pages of a guarded mapping back to the system; who reads them reads the file
/// again. Does nothing for other memory.
void give_back_mapped(std::span<const std::byte> memory) noexcept;
/// Says that a part of the mapping that contains the address is no longer the file's pages: nothing of this
/// mapping is given back from now on.
void keep_mapped(const void* address) noexcept;

}  // namespace keyhole
