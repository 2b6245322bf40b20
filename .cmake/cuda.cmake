# Builds the CUDA module keyhole_cuda where there is nvcc: device memory and kernels. The backend's factory
# opens it at run time. The code that uses it (engine/backend/cuda) is ordinary C++, part of the engine, and
# needs no CUDA toolkit. Prints in one line what was found and what it builds. Included at the top level and
# not a function, because enable_language works nowhere else.

if(KH_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off (KH_CUDA=OFF); the CPU backend alone")
  return()
endif()
file(GLOB KH_CUDA_SOURCES CONFIGURE_DEPENDS engine/backend/cuda/module/*.cu engine/backend/cuda/module/*.cpp)
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
find_package(CUDAToolkit REQUIRED)
add_library(keyhole_cuda MODULE ${KH_CUDA_SOURCES})
set_target_properties(keyhole_cuda PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_STANDARD 20)
target_compile_options(keyhole_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion --fmad=false>
  # Lets compute-sanitizer name source lines.
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<NOT:$<CONFIG:Release>>>:-lineinfo>)
# The CUDA runtime is linked statically, and cuBLAS is opened at run time: a machine needs only the driver
# and any cuBLAS since 11.
target_link_libraries(keyhole_cuda PRIVATE engine.backend.cuda.headers CUDA::cudart_static CUDA::toolkit
  ${CMAKE_DL_LIBS})
target_include_directories(keyhole_cuda PRIVATE ${CMAKE_SOURCE_DIR})
# Built with the engine, opened by the factory, linked by no target.
add_dependencies(keyhole_engine keyhole_cuda)
