# KH_SHADERS_CPP: a generated source with the text of all files in shaders/. It defines shader_source()
# (app/gl/shader_source.h).

file(GLOB KH_SHADERS CONFIGURE_DEPENDS shaders/*.glsl shaders/*.vert shaders/*.frag)
set(KH_SHADERS_CPP ${CMAKE_BINARY_DIR}/generated/shaders.cpp)
string(REPLACE ";" "|" shaders "${KH_SHADERS}")
add_custom_command(
  OUTPUT ${KH_SHADERS_CPP}
  COMMAND ${CMAKE_COMMAND} "-DSHADERS=${shaders}" -DOUTPUT=${KH_SHADERS_CPP}
          -P ${CMAKE_SOURCE_DIR}/.cmake/embed_shaders.cmake
  DEPENDS ${KH_SHADERS} ${CMAKE_SOURCE_DIR}/.cmake/embed_shaders.cmake
  COMMENT "Embedding shaders" VERBATIM)
