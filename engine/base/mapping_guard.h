/// Mapped files that another program cuts or writes to meanwhile. Any thread.
///
/// A read behind the end of a file that was cut raises SIGBUS, which ends the program. It comes in a kernel
/// of any thread, so that no exception can take its place, and a jump out of the handler would leave the
/// thread pool's counters and locks as they are. The handler here maps zeros over the lost part instead (as
/// libwayland does for shared buffers), and the read goes on. So a result that was computed from a mapping
/// counts only after check_mapping() has passed. Signals for other addresses go to the handler that was there
/// before.
#pragma once

#include <cstddef>
#include <filesystem>

namespace keyhole {

/// From now on the handler knows [data, data + n_bytes), a mapping of the open file. Duplicates the
/// descriptor.
void guard_mapping(const std::filesystem::path& path, int descriptor, const void* data, std::size_t n_bytes);
/// Call it before the mapping ends. Does nothing for what is not guarded.
void release_mapping(const void* data) noexcept;

/// The begin of the guarded mapping that holds the address; null: none does.
const void* mapping_of(const void* address);
/// Throws Error(bad_file), naming the file, when the file of a guarded mapping was cut or written to since it
/// was mapped: by its size, its time of change and what the handler saw. A file that was replaced by another
/// is not changed. Costs one system call.
void check_mapping(const void* data);

}  // namespace keyhole
