# kh_embed(OUTPUT FUNCTION HEADER FILES...): OUTPUT becomes a source with the text of the files. It defines
# FUNCTION(std::string_view name), declared in HEADER, which returns the text of a file.
#
# Script: cmake -DFILES=a.vert|b.frag -DOUTPUT=shaders.cpp -DFUNCTION=shader_source -DHEADER=...
#         -P embed.cmake

if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(kh_embed output function header)
    string(REPLACE ";" "|" files "${ARGN}")
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" -DOUTPUT=${output} -DFUNCTION=${function} -DHEADER=${header}
              -P ${CMAKE_SOURCE_DIR}/.cmake/embed.cmake
      DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/.cmake/embed.cmake
      COMMENT "Embedding what ${function} returns" VERBATIM)
  endfunction()
  return()
endif()

string(REPLACE "|" ";" FILES "${FILES}")
set(text "#include \"${HEADER}\"\n\n#include \"engine/base/error.h\"\n\nnamespace keyhole {\n\n")
string(APPEND text "std::string_view ${FUNCTION}(std::string_view name) {\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} source)
  string(APPEND text "    if (name == \"${name}\") return R\"source(${source})source\";\n")
endforeach()
string(APPEND text "    fail(ErrorCode::unsupported, \"no file '{}' in this build\", name);\n}\n\n"
                   "}  // namespace keyhole\n")
file(WRITE ${OUTPUT} "${text}")
