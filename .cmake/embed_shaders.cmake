# Script: cmake -DSHADERS=a.vert|b.frag -DOUTPUT=shaders.cpp -P embed_shaders.cmake

string(REPLACE "|" ";" SHADERS "${SHADERS}")
set(text "#include \"app/gl/shader_source.h\"\n\n#include \"engine/base/error.h\"\n\nnamespace keyhole {\n\n")
string(APPEND text "std::string_view shader_source(std::string_view name) {\n")
foreach(shader IN LISTS SHADERS)
  get_filename_component(name ${shader} NAME)
  file(READ ${shader} source)
  string(APPEND text "    if (name == \"${name}\") return R\"shader(${source})shader\";\n")
endforeach()
string(APPEND text "    fail(ErrorCode::unsupported, \"no shader '{}' in this build\", name);\n}\n\n"
                   "}  // namespace keyhole\n")
file(WRITE ${OUTPUT} "${text}")
