/// Returns the text of a file in shaders/, embedded at build time (.cmake/embed_shaders.cmake).
/// Any thread; makes no GL calls.
#pragma once

#include <string_view>

namespace keyhole {

/// name: the file's name, for example "heatmap.frag". Throws Error(unsupported) if there is no such file.
std::string_view shader_source(std::string_view name);

}  // namespace keyhole
