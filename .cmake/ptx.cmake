# nvcc's PTX of the kernels runs on the host in tests: an emulator (tests/gpu/ptx) takes the place of the
# CUDA runtime and of cuBLAS, so that executor.cpp and the host code of kernels.cu are linked as they are.

# The text of an architecture, with the module's options: ptx/kernels_80.ptx, by the target keyhole_ptx_80. It
# is the module's own where that has it. Later ones differ from 80 in .target alone. Turing (75) multiplies
# halves of its matrices, bf16 by loops, and rounds to bf16 by itself: its text has these kernels alone.
set(KH_PTX_FOLDER ${CMAKE_BINARY_DIR}/ptx)
foreach(architecture 75 80)
  set(file ${KH_PTX_FOLDER}/kernels_${architecture}.ptx)
  if(architecture EQUAL 80 AND KH_PTX_KEPT)
    add_custom_command(OUTPUT ${file} COMMAND ${CMAKE_COMMAND} -E copy ${KH_PTX_KEPT} ${file}
      DEPENDS keyhole_cuda_kernels $<TARGET_OBJECTS:keyhole_cuda_kernels> VERBATIM)
    add_custom_target(keyhole_ptx_80 DEPENDS ${file})
    continue()
  endif()
  set(text keyhole_ptx_text_${architecture})
  add_library(${text} OBJECT EXCLUDE_FROM_ALL engine/backend/cuda/module/kernels.cu)
  set_target_properties(${text} PROPERTIES CUDA_PTX_COMPILATION ON CUDA_STANDARD 20
    CUDA_ARCHITECTURES ${architecture}-virtual)
  target_compile_options(${text} PRIVATE --fmad=false ${KH_LINEINFO})
  target_link_libraries(${text} PRIVATE keyhole_options fmt::fmt)
  target_include_directories(${text} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${text} PRIVATE $<$<EQUAL:${architecture},75>:KH_TURING_KERNELS>)
  add_custom_command(OUTPUT ${file} COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_OBJECTS:${text}> ${file}
    DEPENDS ${text} $<TARGET_OBJECTS:${text}> VERBATIM)
  add_custom_target(keyhole_ptx_${architecture} DEPENDS ${file})
endforeach()

# The emulator, under the name of cuBLAS, which the executor opens at run time. Compiled for this machine:
# a warp's operation is a loop over 32 lanes.
file(GLOB KH_PTX_SOURCES CONFIGURE_DEPENDS tests/gpu/ptx/*.cpp)
list(FILTER KH_PTX_SOURCES EXCLUDE REGEX "/test_")
add_library(keyhole_ptx SHARED ${KH_PTX_SOURCES})
set_target_properties(keyhole_ptx PROPERTIES OUTPUT_NAME cublas SOVERSION ${CUDAToolkit_VERSION_MAJOR}
  LIBRARY_OUTPUT_DIRECTORY ${KH_PTX_FOLDER})
target_compile_options(keyhole_ptx PRIVATE -O2 -ftree-vectorize -march=native -fno-strict-aliasing)
target_include_directories(keyhole_ptx PUBLIC ${CMAKE_SOURCE_DIR})
target_include_directories(keyhole_ptx SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(keyhole_ptx PRIVATE keyhole_options PUBLIC fmt::fmt ${CMAKE_DL_LIBS})
add_dependencies(keyhole_ptx keyhole_ptx_80)

# What is linked with the emulator in place of CUDA.
function(kh_on_ptx target)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:keyhole_cuda_kernels>)
  target_link_libraries(${target} PRIVATE keyhole_ptx)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None)
endfunction()

# The kernels against the host: the program for a device, with the emulator; and every kernel's cases, changed
# texts, and small kernels with a fault, as tests.
add_library(keyhole_selftest_parts OBJECT EXCLUDE_FROM_ALL ${KH_SELFTEST})
target_link_libraries(keyhole_selftest_parts PRIVATE keyhole_options fmt::fmt)
target_include_directories(keyhole_selftest_parts PRIVATE ${CMAKE_SOURCE_DIR})
add_executable(keyhole_selftest_ptx EXCLUDE_FROM_ALL tests/gpu/selftest/main.cpp)
add_executable(keyhole_ptx_tests tests/gpu/ptx/test_ptx.cpp)
target_link_libraries(keyhole_ptx_tests PRIVATE keyhole_kernel_tests_options GTest::gtest_main)
foreach(program keyhole_selftest_ptx keyhole_ptx_tests)
  target_sources(${program} PRIVATE $<TARGET_OBJECTS:keyhole_selftest_parts>
    $<TARGET_OBJECTS:engine.backend.cuda.host>)
  target_link_libraries(${program} PRIVATE keyhole_options fmt::fmt)
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR})
  kh_on_ptx(${program})
endforeach()
add_dependencies(keyhole_ptx_tests keyhole_ptx_75)
kh_add_tests(keyhole_ptx_tests ptx)

# The module, which the program opens by KEYHOLE_CUDA_MODULE: the whole proof, with work as late as it may be
# and approximations off by a place.
kh_cuda_module(keyhole_cuda_ptx)
kh_on_ptx(keyhole_cuda_ptx)
if(TARGET keyhole)
  add_test(NAME Ptx.TheProofPasses COMMAND keyhole selftest --backend cuda)
  set_tests_properties(Ptx.TheProofPasses PROPERTIES LABELS ptx TIMEOUT 600 COST 1
    ENVIRONMENT "KEYHOLE_CUDA_MODULE=$<TARGET_FILE:keyhole_cuda_ptx>;KEYHOLE_PTX_STREAMS=late;\
KEYHOLE_PTX_APPROXIMATE=1;XDG_CACHE_HOME=${KH_PTX_FOLDER}")
endif()
