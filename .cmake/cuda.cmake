# The CUDA backend. All of it is ordinary C++ but engine/backend/cuda/module. The program links none of it:
# the module keyhole_cuda has the whole, which engine/device opens at run time. Tests run it on the host.
# Prints in one line what was found and what it builds. Included at the top level and not a function, because
# enable_language works nowhere else.

if(KH_SELFTEST_ONLY)
  set(KH_CUDA ON)
  find_path(KH_FMT_INCLUDE fmt/format.h)
  if(NOT KH_FMT_INCLUDE)
    message(FATAL_ERROR "KH_SELFTEST_ONLY needs the headers of fmt (libfmt-dev): install them, or name the "
                        "folder that holds fmt/format.h with -DKH_FMT_INCLUDE=FOLDER")
  endif()
  add_library(fmt::fmt INTERFACE IMPORTED)
  target_include_directories(fmt::fmt INTERFACE ${KH_FMT_INCLUDE})
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
else()
  kh_folder(engine/backend/cuda AND engine/backend/cuda/kernels
    USES engine/backend/common engine/backend/module BARE)
  # Kernels on the host compute for long, but -O2 would take longer to compile than it saves.
  kh_folder(engine/backend/cuda/host USES engine/backend/cuda SWIFT)
  # What else of the engine a module holds. Nothing that has one state for the process.
  add_library(keyhole_module_parts OBJECT EXCLUDE_FROM_ALL engine/base/error.cpp engine/base/half.cpp
    engine/base/kv_type.cpp engine/model/dtype.cpp engine/model/kv_default.cpp engine/model/rotary.cpp
    engine/policy/allocation.cpp engine/policy/attention.cpp engine/policy/query_moments.cpp
    engine/policy/resolved_policy.cpp engine/policy/selection.cpp engine/policy/win_rows.cpp)
  target_link_libraries(keyhole_module_parts PRIVATE keyhole_options fmt::fmt PkgConfig::HWY)
  target_include_directories(keyhole_module_parts PRIVATE ${CMAKE_SOURCE_DIR})
  kh_unity(keyhole_module_parts)
  set(KH_MODULE_OBJECTS engine.backend.cuda engine.backend.cuda.host engine.backend.common
    engine.backend.module keyhole_module_parts)
  # Hidden, since calls by way of a table would take longer.
  set_target_properties(${KH_MODULE_OBJECTS} PROPERTIES POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  kh_join(keyhole_cuda_backend engine/backend/cuda ${KH_CUDA_HOST})
  target_link_libraries(keyhole_cuda_backend PUBLIC keyhole_engine)
  set_target_properties(engine.backend.cuda engine.backend.cuda.host keyhole_cuda_backend PROPERTIES
    EXCLUDE_FROM_ALL ON)

  set(KH_CUDA_ABI_FILE ${CMAKE_BINARY_DIR}/generated/cuda_abi.inc)
  file(GLOB headers CONFIGURE_DEPENDS engine/base/*.h engine/model/*.h engine/policy/*.h engine/backend/*.h
    engine/backend/module/*.h)
  add_custom_command(
    OUTPUT ${KH_CUDA_ABI_FILE}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUTPUT=${KH_CUDA_ABI_FILE}
            "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
            -P ${CMAKE_SOURCE_DIR}/.cmake/cuda_abi.cmake
    DEPENDS ${headers} ${CMAKE_SOURCE_DIR}/.cmake/cuda_abi.cmake
    COMMENT "Hashing the boundary of the CUDA module" VERBATIM)
  target_sources(engine.backend.module PRIVATE ${KH_CUDA_ABI_FILE})
  set_source_files_properties(engine/backend/module/cuda_abi.cpp PROPERTIES
    OBJECT_DEPENDS ${KH_CUDA_ABI_FILE} COMPILE_DEFINITIONS "KH_CUDA_ABI_FILE=\"${KH_CUDA_ABI_FILE}\"")

  # kh_cuda_module(NAME SOURCE...): a module with the whole backend. The sources have make_device_executor().
  function(kh_cuda_module name)
    add_library(${name} MODULE ${ARGN} engine/backend/cuda/module/entry.cpp)
    target_link_libraries(${name} PRIVATE keyhole_options fmt::fmt PkgConfig::HWY ${KH_MODULE_OBJECTS})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
    if(NOT KH_SANITIZE)
      target_link_options(${name} PRIVATE LINKER:-z,defs)  # what the list of parts lacks is found here
    endif()
  endfunction()
endif()

if(KH_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off (KH_CUDA=OFF); the CPU backend alone")
  return()
endif()
include(CheckLanguage)
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
  if(nvcc)
    set(ENV{CUDACXX} ${nvcc})  # where check_language looks first
  endif()
endif()
set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
check_language(CUDA)
unset(CMAKE_MESSAGE_LOG_LEVEL)
if(NOT CMAKE_CUDA_COMPILER)
  if(KH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KH_CUDA=ON, but no working nvcc was found: install the CUDA toolkit (12 or later), "
                        "put nvcc on PATH or name it in CUDACXX")
  endif()
  message(STATUS "CUDA: no working nvcc; the CPU backend alone")
  return()
endif()

include(.cmake/cuda_architectures.cmake)
execute_process(COMMAND nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader
                OUTPUT_VARIABLE listed ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(listed "")
endif()
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
kh_cuda_architectures("${KH_CUDA_ARCHITECTURES}" "${listed}" "${known}" architectures device refused)
if(refused)
  if(KH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KH_CUDA=ON, but ${refused}")
  endif()
  message(STATUS "CUDA: ${refused}; the CPU backend alone")
  return()
endif()
list(JOIN architectures ", " shown)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER}, ${device}, architectures ${shown}")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # each target names its own; CMake would ask the device
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc 12 has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
# CMake 3.25.1 stops where there is no nvToolsExt, which CUDA 13 has no more.
if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit REQUIRED)
# Memory, launches and kernels: the part that needs CUDA.
add_library(keyhole_cuda_kernels OBJECT EXCLUDE_FROM_ALL engine/backend/cuda/module/executor.cpp
  engine/backend/cuda/module/kernels.cu)
# Code of sm_90 is made of the PTX of compute_80, which differs from that of compute_90 in .target alone. It
# is kept for tests (ptx.cmake), which would otherwise compile it again, for as long as the module takes. A
# launcher such as ccache gives the object of an earlier run without the PTX beside it, so it keeps none.
set(KH_PTX_KEPT)  # or the file
if("90" IN_LIST architectures)
  set(kept ${CMAKE_BINARY_DIR}/CMakeFiles/kept_ptx)
  file(MAKE_DIRECTORY ${kept})
  list(REMOVE_ITEM architectures 90)
  set(file ${kept}/kernels.compute_80.ptx)  # nvcc's names
  if(NOT architectures)
    set(architectures OFF)
    set(file ${kept}/kernels.ptx)
  endif()
  set(options "--generate-code=arch=compute_80,code=[compute_80,sm_90]")
  if(NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(KH_PTX_KEPT ${file})
    list(APPEND options --keep --keep-dir=${kept})
  endif()
  target_compile_options(keyhole_cuda_kernels PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
endif()
set_target_properties(keyhole_cuda_kernels PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_STANDARD 20
  POSITION_INDEPENDENT_CODE ON)
# Lines of sources, for compute-sanitizer and for what the tests of PTX print. Where a test build from nothing
# sees no device, only these tests run the kernels, from PTX: without lines and with machine code that is not
# optimised the module takes two thirds of the time. One test reads the machine code, by cuobjdump.
set(KH_LINEINFO $<$<NOT:$<CONFIG:Release>>:-lineinfo>)
set(KH_PTXAS_OPTIONS)
if(KH_UNITY AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" AND listed STREQUAL "")
  set(KH_LINEINFO)
  find_program(KH_CUOBJDUMP cuobjdump PATHS /usr/local/cuda/bin)
  if(NOT KH_CUOBJDUMP AND NOT DEFINED ENV{CUOBJDUMP})
    set(KH_PTXAS_OPTIONS -Xptxas=-O0)
  endif()
endif()
target_compile_options(keyhole_cuda_kernels PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion --fmad=false ${KH_PTXAS_OPTIONS}>
  $<$<COMPILE_LANGUAGE:CUDA>:${KH_LINEINFO}>)
# The CUDA runtime is linked statically, and cuBLAS is opened at run time: a machine needs only the driver
# and any cuBLAS since 11.
target_link_libraries(keyhole_cuda_kernels PUBLIC keyhole_options fmt::fmt CUDA::cudart_static CUDA::toolkit
  ${CMAKE_DL_LIBS})
target_include_directories(keyhole_cuda_kernels PRIVATE ${CMAKE_SOURCE_DIR})

# The kernels against the host, without the engine.
file(GLOB KH_SELFTEST CONFIGURE_DEPENDS engine/backend/cuda/selftest*.cpp)
list(APPEND KH_SELFTEST engine/base/crash_message.cpp engine/base/device_verdict.cpp engine/base/error.cpp
  engine/model/dtype.cpp)
add_executable(keyhole_selftest EXCLUDE_FROM_ALL tests/gpu/selftest/main.cpp ${KH_SELFTEST})
target_link_libraries(keyhole_selftest PRIVATE keyhole_cuda_kernels)
target_include_directories(keyhole_selftest PRIVATE ${CMAKE_SOURCE_DIR})
if(KH_SELFTEST_ONLY)
  target_sources(keyhole_selftest PRIVATE engine/backend/cuda/host/host_executor.cpp)
  set_target_properties(keyhole_selftest PROPERTIES EXCLUDE_FROM_ALL OFF)
  return()
endif()
target_sources(keyhole_selftest PRIVATE $<TARGET_OBJECTS:engine.backend.cuda.host>)

# Built with the engine, opened by engine/device, linked by no target.
kh_cuda_module(keyhole_cuda)
target_link_libraries(keyhole_cuda PRIVATE keyhole_cuda_kernels)
add_dependencies(keyhole_engine keyhole_cuda)
