/// Compares the engine with what `transformers` computed: a folder of tests/fixtures with its
/// expected.safetensors.
#pragma once

#include <filesystem>
#include <string>

namespace reference {

/// Distance from the values that transformers computed.
struct OutsideError {
    double share = 0;   ///< largest error of next-token logits and attention, over 3e-5 of their scale
    std::string where;  ///< row, layer, head and position of that error
};

/// Runs all rows with a full cache on the CPU, the first n_prompt in one pass (0: all of them). expected: the
/// folder of expected.safetensors where it is not the model's, or such a file.
OutsideError error_to_transformers(const std::filesystem::path& model_path, int n_prompt,
                                   const std::filesystem::path& expected = {});
/// Fails the test if the share is above 1.
void compare_with_transformers(const std::filesystem::path& model_path, int n_prompt,
                               const std::filesystem::path& expected = {});

}  // namespace reference
