/// The engine against what `transformers` computed: a folder of tests/fixtures with its expected.safetensors.
#pragma once

#include <filesystem>
#include <string>

namespace reference {

/// How far from what was computed outside.
struct OutsideError {
    double share = 0;   ///< largest error of next-token logits and attention over 3e-5 of their scale
    std::string where;  ///< row, layer, head and position of that
};

/// All rows of a full cache on the CPU, the first n_prompt in one go (0: all of them).
OutsideError error_to_transformers(const std::filesystem::path& folder, int n_prompt);
/// Fails the test where the share is above 1.
void compare_with_transformers(const std::filesystem::path& folder, int n_prompt);

}  // namespace reference
