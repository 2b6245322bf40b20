/// Locates the tests' fixtures, the shipped models and the programs under test. Any thread may call it. Does
/// not check that the files exist.
#pragma once

#include <filesystem>
#include <string>

namespace reference {

/// Returns the source tree, or KEYHOLE_SOURCE_DIR for programs that were built on another machine.
std::filesystem::path source_folder();

/// Returns a program or module of the build, such as "keyhole", from the folder of the running test program.
std::string built(const std::string& name);

}  // namespace reference
