# Target keyhole_headers, which ./test --full builds: compiles every header of the engine alone, so that
# includes need no order.

file(GLOB_RECURSE KH_HEADERS CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} engine/*.h)

set(sources)
foreach(header IN LISTS KH_HEADERS)
  string(REPLACE "/" "_" name ${header})
  set(source ${CMAKE_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n")
  list(APPEND sources ${source})
endforeach()

add_library(keyhole_headers OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(keyhole_headers PRIVATE keyhole_options fmt::fmt PkgConfig::HWY)
target_include_directories(keyhole_headers PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(keyhole_headers PRIVATE -O0 -g0 -Wno-unused-function)
