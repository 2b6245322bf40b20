/// Where the tests' fixtures, the shipped models and the programs under test are.
#pragma once

#include <filesystem>
#include <string>

namespace reference {

/// The source tree, or what KEYHOLE_SOURCE_DIR names, for programs that were built on another machine.
std::filesystem::path source_folder();

/// A program or module of the build, such as "keyhole": it is in the folder of the running test program.
std::string built(const std::string& name);

}  // namespace reference
