# Target keyhole_headers, which ./test --everything builds: compiles every header of ours alone, so that
# includes need no order. The headers that nearly every file includes are precompiled, as elsewhere.

set(patterns engine/*.h)
if(KH_WINDOW)
  list(APPEND patterns app/*.h)
endif()
file(GLOB_RECURSE KH_HEADERS CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${patterns})
# Parts of integer_products.cpp, each within a namespace that has the registers of a path.
list(FILTER KH_HEADERS EXCLUDE REGEX "/integer_[a-z]+_inl\\.h$")

set(sources)
foreach(header IN LISTS KH_HEADERS)
  string(REPLACE "/" "_" name ${header})
  set(source ${CMAKE_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n")
  list(APPEND sources ${source})
endforeach()

add_library(keyhole_headers OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(keyhole_headers PRIVATE keyhole_options keyhole_quick_options fmt::fmt PkgConfig::HWY)
if(KH_WINDOW)
  target_link_libraries(keyhole_headers PRIVATE PkgConfig::IMGUI OpenGL::GL glfw)
endif()
target_include_directories(keyhole_headers PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(keyhole_headers PRIVATE -Wno-unused-function)
kh_precompile(keyhole_headers keyhole_precompiled)
