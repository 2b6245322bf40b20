/// Limits SIMD code to one instruction set, so that a new processor tests and times what an older one runs.
/// Call it before the first kernel, from one thread.
#pragma once

#include <string_view>

namespace reference {

/// name: as Highway spells it, such as "AVX2", or the last way of products in integers to take
/// (integer_path_name()), such as "AVX-512 VNNI" to leave out AMX. Returns false if the processor or the
/// build has none of that name.
bool use_instruction_set(std::string_view name);

}  // namespace reference
