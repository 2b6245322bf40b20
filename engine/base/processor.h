/// The instruction sets that a build needs.
#pragma once

#include <cstdint>
#include <string>

namespace keyhole {

/// Returns the name of the instruction set that this build needs and this processor lacks, or nothing. Only a
/// build for one machine (KH_SIMD=HOST) that is run on another one lacks any.
std::string lacking_instruction_set();

/// The same for the sets of a build and of a processor, each a sum of Highway's bits (HWY_AVX2, ...).
std::string lacking_instruction_set(std::int64_t of_build, std::int64_t of_processor);

}  // namespace keyhole
