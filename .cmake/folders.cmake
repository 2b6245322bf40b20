# kh_folder(PATH [AND SUBFOLDER...] [USES FOLDER...] [SOURCES_USE FOLDER...] [LIBRARIES TARGET...]
#           [BARE] [SWIFT] [FAST])
# Makes a folder a target; engine/base becomes engine.base. Its files may include its own headers, those of
# the folders that it USES, and those that these use. SOURCES_USE adds folders for its sources only. An AND
# folder is part of the target. Any other include of ours does not compile: each folder's files are linked
# into an include path of their own, and the root of the sources is in none. BARE: no precompiled headers,
# since it has compile options of its own. FAST: it computes for long, so that it always has -O2; SWIFT: for
# as long as a picture takes, so that it has at least -O1. Both are bare: headers are precompiled for -Og.

# kh_precompiled(NAME [LIBRARIES TARGET...] [HEADERS HEADER...] [FAST])
# Precompiles the headers that nearly every file includes, and HEADERS. kh_precompile(TARGET NAME) lets a
# target use them; it must be compiled with the common options and no others.
set(KH_PRECOMPILED
  <algorithm> <array> <cmath> <condition_variable> <cstdint> <deque> <filesystem> <fstream> <functional>
  <map> <memory> <mutex> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread>
  <unordered_map> <utility> <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>)

function(kh_precompiled name)
  cmake_parse_arguments(PARSE_ARGV 1 PRECOMPILED "FAST" "" "LIBRARIES;HEADERS")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${name}.cpp CONTENT "")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/generated/${name}.cpp)
  target_link_libraries(${name} PRIVATE keyhole_options fmt::fmt nlohmann_json::nlohmann_json
    ${PRECOMPILED_LIBRARIES})
  if(NOT PRECOMPILED_FAST)
    target_link_libraries(${name} PRIVATE keyhole_quick_options)
  endif()
  target_precompile_headers(${name} PRIVATE ${KH_PRECOMPILED} ${KH_JSON_ONCE} ${PRECOMPILED_HEADERS})
endfunction()

function(kh_precompile target name)
  if(TARGET ${name})
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# In builds from nothing most folders are compiled with -Og, which takes three fifths of the time of -O2. Only
# FAST and SWIFT folders compute for long. Release leaves the check of format strings to the other builds.
add_library(keyhole_quick_options INTERFACE)
add_library(keyhole_swift_options INTERFACE)
if(KH_UNITY)
  target_compile_options(keyhole_swift_options INTERFACE -O1)
  # With -Og GCC says of more variables than are so that they may not be set. The preset dev has -O2.
  target_compile_options(keyhole_quick_options INTERFACE
    -Og $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  # GCC begins to collect garbage at a few MB, which takes a tenth of its time.
  target_compile_options(keyhole_options INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1000000 --param ggc-min-expand=300>")
endif()
target_compile_definitions(keyhole_options INTERFACE
  $<$<CONFIG:Release>:FMT_CONSTEVAL=> $<$<CONFIG:Release>:FMT_USE_CONSTEVAL=0>)

# JSON's class is instantiated in one source (engine/base/json_once.cpp), not in each that uses it.
set(KH_JSON_ONCE ${CMAKE_BINARY_DIR}/generated/json_once.h)
file(CONFIGURE OUTPUT ${KH_JSON_ONCE} CONTENT "extern template class nlohmann::basic_json<>;\n")

kh_precompiled(keyhole_precompiled)

# Sources that cannot be compiled together with others: Highway compiles them once for every instruction set.
set(KH_ALONE
  engine/base/half.cpp engine/base/json_once.cpp engine/policy/next_token_measures.cpp
  engine/backend/common/block_kernels.cpp engine/backend/common/kernels.cpp
  engine/backend/common/key_pages.cpp engine/backend/common/value_reach.cpp
  engine/backend/common/kv_rows.cpp engine/backend/cuda/prefill_attention.cpp
  engine/bench/wide_read.cpp)
set_source_files_properties(${KH_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# These work for long, in folders that do not.
set_source_files_properties(engine/base/half.cpp engine/policy/next_token_measures.cpp PROPERTIES
  SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS -O2)
set_source_files_properties(engine/base/json_once.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON
  COMPILE_OPTIONS -O1)

# kh_unity(TARGET [N]): compiles N sources of the target at once, with KH_UNITY. A build from nothing then
# takes about half of the processor time, but a small change takes longer.
function(kh_unity target)
  set(n 20)
  if(ARGN)
    set(n ${ARGN})
  endif()
  if(KH_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${n})
    # GCC takes a source that another includes for a header.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(kh_folder path)
  cmake_parse_arguments(PARSE_ARGV 1 FOLDER "FAST;SWIFT;BARE" "" "AND;USES;SOURCES_USE;LIBRARIES")
  string(REPLACE "/" "." target ${path})
  set(include ${CMAKE_BINARY_DIR}/include/${target})
  file(REMOVE_RECURSE ${include})
  set(files)
  foreach(folder IN ITEMS ${path} LISTS FOLDER_AND)
    # The sources too: Highway includes a source by its name, once for every instruction set.
    file(GLOB found CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
         ${folder}/*.h ${folder}/*.inc ${folder}/*.cpp)
    list(APPEND files ${found})
    file(MAKE_DIRECTORY ${include}/${folder})
  endforeach()
  foreach(file IN LISTS files)
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${file} ${include}/${file} SYMBOLIC)
  endforeach()
  add_library(${target}.headers INTERFACE)
  target_include_directories(${target}.headers INTERFACE ${include})
  target_link_libraries(${target}.headers INTERFACE keyhole_options fmt::fmt)
  foreach(used IN LISTS FOLDER_USES)
    string(REPLACE "/" "." used ${used})
    target_link_libraries(${target}.headers INTERFACE ${used}.headers)
  endforeach()

  list(FILTER files INCLUDE REGEX "\\.cpp$")
  add_library(${target} OBJECT ${files})
  target_link_libraries(${target} PUBLIC ${target}.headers PRIVATE ${FOLDER_LIBRARIES})
  foreach(used IN LISTS FOLDER_SOURCES_USE)
    string(REPLACE "/" "." used ${used})
    target_link_libraries(${target} PRIVATE ${used}.headers)
  endforeach()
  if(FOLDER_SWIFT)
    target_link_libraries(${target} PRIVATE keyhole_swift_options)
  elseif(NOT FOLDER_FAST)
    target_link_libraries(${target} PRIVATE keyhole_quick_options)
  endif()
  if(NOT FOLDER_BARE AND NOT FOLDER_FAST AND NOT FOLDER_SWIFT)
    kh_precompile(${target} keyhole_precompiled)
  endif()
  kh_unity(${target} 100)
endfunction()

# kh_join(LIBRARY FOLDER...): makes a static library of folders for tests and programs, which may include all.
function(kh_join library)
  set(objects)
  foreach(path IN LISTS ARGN)
    string(REPLACE "/" "." target ${path})
    list(APPEND objects ${target})
  endforeach()
  add_library(${library} STATIC)
  target_link_libraries(${library} PUBLIC keyhole_options fmt::fmt PRIVATE ${objects})
  target_include_directories(${library} INTERFACE ${CMAKE_SOURCE_DIR})
endfunction()

# kh_leave_out(TARGET INCLUDE|EXCLUDE REGEX): the target keeps the sources that match, or the others.
function(kh_leave_out target which regex)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources ${which} REGEX "${regex}")
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
endfunction()
