# Test programs, and style checks that run as tests. Without GoogleTest there are none; `ctest` says so.

find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(STATUS "Tests: left out, GoogleTest is missing (libgtest-dev)")
  return()
endif()
include(GoogleTest)

# Only these units use several threads. The others would take long under ThreadSanitizer and find nothing.
# The real model alone takes nine minutes there; small models run the same threads. Of the calls that fail
# on a device, one is enough; so is one set of lanes, a short prompt, and a long text with one size of heads.
# EngineDescription, EngineExportMeasures, CudaOrders, CudaSelfTest and the limit of lanes have one thread,
# whatever their names say; EngineMemory measures memory. CMakeLists.txt leaves out folders that these tests
# do not need.
set(KH_THREADED_TESTS *Recorder* *Queue* *Threads* *Engine*)
set(KH_NOT_UNDER_TSAN *Reference* *EngineDescription* EngineExportMeasures.* EngineMemory.* CudaOrders.*
  CudaSelfTest.* SmolLm2* *BitsOfALongText*/1 *BitsOfALongText*/2 *OnFailingDevice*/Launch
  *OnFailingDevice*/Copy EngineLanes.AloneAndTogether* EngineLanes.Permuted* EngineSession.LargePrompts*
  EngineSession.MoreLanesThanATraceHoldsAreRefused)
set(KH_THREADED_FILES "^TEST.*\\(.*(Recorder|Queue|Threads|Engine)")

# Window tests that run under AddressSanitizer: those that work all of the window with a real pointer. The
# others would take long and find nothing new.
set(KH_INPUT_TESTS WindowInput.* LessonInput.* RandomInput.*)

# Left out under AddressSanitizer: kernels alone, which it does not watch, and the longest runs, since others
# run the same code (longest prompts, second seeds, presets of the field with a second shape, long texts with
# two sizes of heads, most of the texts at random, all but the first answers of the real model, statistics of
# many runs, megabytes of text; against the reference alone, policies that others change, fork and rewind).
set(KH_NOT_UNDER_ASAN CudaSelfTest.* CudaOrders.* CudaPromptKernels.* CudaKernel*
  SamplesNeeded.* Tokenizer.EncodesMegabytes FamilyOptions.TheManualsTableIsMadeFromTheseTests
  SmolLm2File.AWindowWithoutTheSinkLosesTheText SmolLm2File.BitsDoNotDependOnThreads
  SmolLm2File.AnswersAsItsF16FolderDoes SmolLm2File.AnswersATurnOfAChatAndTheNext
  SmolLm2File.AWindowForgetsTheCode SmolLm2File.CompletesTheStoryWithTheCodeInFullAndTova
  SmolLm2File.AThirdOfTheHeadsHaveASink
  *EngineReferencePresets.*Prompt130Kv* *Dialects.Cpu*Prompt24Kv*
  *Dialects.Cpu*Prompt1Kv* *Dialects.Cpu*Prompt2Kv* *Dialects.Cpu*Prompt11Kv4* *Dialects.Cpu*Prompt11Kv2*
  Generate.EqualsTransformers CudaBackend.TheDemoModelsFollowTheCpu
  *EngineReferencePresets*Prompt33*Seed11 *EngineReferencePresets*Prompt33*Seed12
  *FieldPolicies*random2kv24 *FieldPolicies*oracle1kv24 *FieldPolicies*knorm2kv24
  *FieldPolicies*keydiff2kv24 *FieldPolicies*snapkv2kv24 *FieldPolicies*rkv4kv3
  *BitsOfALongText*/1 *BitsOfALongText*/2 CudaPrompt.NoAllocationGrowsWithTheSquareOfTheTokens
  CudaPrompt.FollowsTheCpu RecordedRun.KeepsWhatFollowsFromItsLogitsAndNoise
  Papers.EverySharingOfMlkvRunsOnBothBackends
  HeadFormulas.KeepWhatTheReferenceKeeps Quest.AgreesWithTheReference QueryPolicies.AgreeWithTheReference
  FieldSpans.FairOnesShareKvHeads FamilySessions.FieldPoliciesAgreeWithTheReferenceWhereLayersSlide
  Drawings.AreAsWideAsAskedInEveryFormat)

# These run with lesser instruction sets of the processor too: kernels of the CPU, and what they compute.
set(KH_SIMD_TESTS Kernels.* *StoredTypes* *Integer* KvRows.* *QuantisedTypes* Half.* ScoreRow.*
  Distribution.*)

list(JOIN KH_THREADED_TESTS ":" KH_TSAN_FILTER)
list(JOIN KH_NOT_UNDER_TSAN ":" left_out)
string(APPEND KH_TSAN_FILTER "-${left_out}")
list(JOIN KH_INPUT_TESTS ":" KH_INPUT_FILTER)
list(JOIN KH_NOT_UNDER_ASAN ":" KH_ASAN_FILTER)
string(PREPEND KH_ASAN_FILTER "*-")
list(JOIN KH_SIMD_TESTS ":" KH_SIMD_FILTER)

# kh_add_pattern_test(NAME TARGET PATTERN...): adds a test that fails where a pattern matches no test of the
# program, since a test with a new name would leave its group unseen.
function(kh_add_pattern_test name target)
  list(JOIN ARGN ":" patterns)
  add_test(NAME Build.${name} COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${target}>
    -DPATTERNS=${patterns} -P ${CMAKE_SOURCE_DIR}/.cmake/check_test_patterns.cmake)
  set_tests_properties(Build.${name} PROPERTIES LABELS build)
endfunction()

# A process takes 0.2 s to start under sanitizers, and 15 ms without. Most tests take less. So a process runs
# many of them, and writes what it ran to parts/. ./test counts these.
set(KH_PARTS 16)

# kh_add_test_parts(TARGET LABEL FILTER PROPERTY...): adds the tests as KH_PARTS processes.
function(kh_add_test_parts target label filter)
  math(EXPR last "${KH_PARTS} - 1")
  foreach(part RANGE ${last})
    set(name ${label}-${part})
    add_test(NAME Part.${name} COMMAND ${target} --gtest_brief=1 --gtest_filter=${filter}
             --gtest_output=xml:${CMAKE_BINARY_DIR}/parts/${name}.xml)
    set_tests_properties(Part.${name} PROPERTIES ${ARGN})
    # AddressSanitizer notes four callers of each allocation: thirty, its default, take long. A quarter of the
    # selections at random goes through all of the code.
    set_property(TEST Part.${name} APPEND PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=${KH_PARTS}
      GTEST_SHARD_INDEX=${part} ASAN_OPTIONS=malloc_context_size=4)
    if(KH_SANITIZE)
      set_property(TEST Part.${name} APPEND PROPERTY ENVIRONMENT KEYHOLE_SELECTIONS=100)
    endif()
  endforeach()
endfunction()

function(kh_add_tests target label)
  if(KH_SANITIZE STREQUAL "thread")
    set(filter TEST_FILTER "${KH_TSAN_FILTER}")
  elseif(KH_SANITIZE STREQUAL "address" AND label STREQUAL "window")
    set(filter TEST_FILTER "${KH_INPUT_FILTER}")
  elseif(KH_SANITIZE STREQUAL "address")
    set(filter TEST_FILTER "${KH_ASAN_FILTER}")
  endif()
  if(label STREQUAL "gpu")
    set(prefix TEST_PREFIX gpu.)  # some cases are unit tests too
  endif()
  set(timeout 600)
  set(cost 0)
  if(label MATCHES "window|app")
    set(timeout 1500)  # KEYHOLE_RANDOM_MINUTES=10
    set(cost 1)  # the longest tests start first: otherwise a core waits for one of them at the end
    # The GL driver leaks, and is unloaded before leaks are looked for: no suppression can name it.
    set(leaks ":detect_leaks=0")
  endif()
  set(properties LABELS ${label} TIMEOUT ${timeout} COST ${cost} ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0${leaks}")
  if(KH_TEST_PARTS AND label STREQUAL "unit")
    list(POP_FRONT filter)
    if(NOT filter)
      set(filter "*")
    endif()
    kh_add_test_parts(${target} ${label} "${filter}" ${properties})
    return()
  endif()
  gtest_discover_tests(${target} ${filter} ${prefix} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES ${properties})
endfunction()

file(GLOB KH_UNIT_TESTS CONFIGURE_DEPENDS tests/unit/*.cpp)
file(GLOB KH_REFERENCE CONFIGURE_DEPENDS tests/reference/*.cpp)
if(KH_SANITIZE STREQUAL "thread")
  # All tests of these are left out above, or have one thread.
  foreach(left_out IN ITEMS reference engine_description export_measures cuda_orders cuda_selftest
      "test_memory\\." smollm2 source_style)
    set(before "${KH_UNIT_TESTS}")
    list(FILTER KH_UNIT_TESTS EXCLUDE REGEX "${left_out}")
    if(KH_UNIT_TESTS STREQUAL before)
      message(FATAL_ERROR "Tests: no file of tests/unit matches ${left_out}")
    endif()
  endforeach()
  foreach(file IN LISTS KH_UNIT_TESTS)
    file(STRINGS ${file} suites REGEX "${KH_THREADED_FILES}")
    if(NOT suites)
      list(REMOVE_ITEM KH_UNIT_TESTS ${file})
    endif()
  endforeach()
endif()
# Tests take long to compile and little time to run: -Og takes two thirds of the time of -O1. The reference,
# and tests that instantiate kernels, compute for long and keep -O1. UBSan watches the engine and not its
# tests, which would take three times as long to compile.
#
# KH_TEST_OBJECTS: a build folder of the same sources, whose objects of the tests and of the reference are
# linked with this build's engine, so that ./test --full compiles them once. What CMakeLists.txt leaves out
# of the engine comes from that folder too.
add_library(keyhole_tests_options INTERFACE)
add_library(keyhole_kernel_tests_options INTERFACE)
if(KH_SANITIZE STREQUAL "address")
  target_compile_options(keyhole_tests_options INTERFACE -O0 -fno-sanitize=undefined)
  target_compile_options(keyhole_kernel_tests_options INTERFACE -O1 -fno-sanitize=undefined)
else()
  target_compile_options(keyhole_tests_options INTERFACE
    -Og $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(keyhole_kernel_tests_options INTERFACE -O1)
endif()
# FAST, since they have an optimisation of their own.
kh_precompiled(keyhole_tests_precompiled FAST
  LIBRARIES GTest::gtest keyhole_tests_options HEADERS <gtest/gtest.h>)
kh_precompiled(keyhole_kernel_tests_precompiled FAST
  LIBRARIES GTest::gtest keyhole_kernel_tests_options HEADERS <gtest/gtest.h>)
if(KH_TEST_OBJECTS)
  add_library(keyhole_reference STATIC IMPORTED)
  set_target_properties(keyhole_reference PROPERTIES
    IMPORTED_LOCATION ${KH_TEST_OBJECTS}/libkeyhole_reference.a)
  target_link_libraries(keyhole_reference INTERFACE
    keyhole_cuda_backend nlohmann_json::nlohmann_json GTest::gtest)
else()
  add_library(keyhole_reference STATIC ${KH_REFERENCE})
  target_link_libraries(keyhole_reference PUBLIC
    keyhole_cuda_backend nlohmann_json::nlohmann_json GTest::gtest PRIVATE keyhole_kernel_tests_options)
  kh_precompile(keyhole_reference keyhole_kernel_tests_precompiled)
  kh_unity(keyhole_reference)
endif()
# For programs alone that give it an executor.
set_source_files_properties(tests/reference/backend_pair.cpp tests/reference/compared_text.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
# Only one file knows the source folder, so that a compiler cache serves clones in any folder.
set_source_files_properties(tests/reference/source_folder.cpp PROPERTIES
  COMPILE_DEFINITIONS KH_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
# kh_test_objects(NAME OPTIONS SOURCE...): replaces sources in KH_UNIT_TESTS by their objects, which other
# programs link too. OPTIONS: of which target they have the options and the headers compiled before them.
macro(kh_test_objects name options)
  list(REMOVE_ITEM KH_UNIT_TESTS ${ARGN})
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PRIVATE
    keyhole_engine ${options}_options nlohmann_json::nlohmann_json GTest::gtest)
  kh_precompile(${name} ${options}_precompiled)
  kh_unity(${name})
  list(APPEND KH_UNIT_TESTS $<TARGET_OBJECTS:${name}>)
endmacro()

# Kernels are templates that these instantiate.
set(KH_KERNEL_TESTS ${KH_UNIT_TESTS})
list(FILTER KH_KERNEL_TESTS INCLUDE REGEX "/test_cuda_(kernels|orders|prompt_kernels|rows|select|share)\\.")
if(KH_KERNEL_TESTS AND NOT KH_TEST_OBJECTS)
  kh_test_objects(keyhole_kernel_tests keyhole_kernel_tests ${KH_KERNEL_TESTS})
endif()
# These run on a device too.
set(KH_DEVICE_TESTS tests/unit/test_cuda_backend.cpp tests/unit/test_cuda_sharing.cpp)
if(NOT KH_SANITIZE)
  list(TRANSFORM KH_DEVICE_TESTS PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE device_tests)
  kh_test_objects(keyhole_device_tests keyhole_tests ${device_tests})
endif()
if(KH_TEST_OBJECTS)
  # The engine comes first: of a function that both have, the linker takes the first, which is watched.
  list(FILTER KH_UNIT_TESTS INCLUDE REGEX TARGET_OBJECTS)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${KH_TEST_OBJECTS}/test_objects.txt)
  file(STRINGS ${KH_TEST_OBJECTS}/test_objects.txt objects)
  list(APPEND KH_UNIT_TESTS ${objects})
endif()
add_executable(keyhole_tests ${KH_UNIT_TESTS})
if(NOT KH_SANITIZE)
  set(objects)
  foreach(target IN ITEMS keyhole_tests keyhole_kernel_tests keyhole_device_tests)
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endforeach()
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/test_objects.txt CONTENT "$<JOIN:${objects},\n>\n")
elseif(KH_TEST_OBJECTS)
  set_target_properties(keyhole_tests PROPERTIES LINKER_LANGUAGE CXX)
  string(CONCAT watched "LINKER:--whole-archive,$<TARGET_FILE:keyhole_engine>,"
    "$<TARGET_FILE:keyhole_cuda_backend>,--no-whole-archive")
  target_link_options(keyhole_tests PRIVATE ${watched})
  target_link_libraries(keyhole_reference INTERFACE ${KH_TEST_OBJECTS}/libkeyhole_cuda_backend.a)
  if(KH_SANITIZE STREQUAL "thread")
    target_link_options(keyhole_tests PRIVATE LINKER:-z,muldefs)
    get_target_property(of_figures engine.figure LINK_LIBRARIES)
    target_link_libraries(keyhole_reference INTERFACE ${KH_TEST_OBJECTS}/libkeyhole_engine.a ${of_figures})
  endif()
endif()
target_link_libraries(keyhole_tests PRIVATE
  keyhole_reference keyhole_tests_options nlohmann_json::nlohmann_json PkgConfig::ZIP PkgConfig::STB GIF::GIF
  GTest::gtest_main)
if(NOT KH_TEST_OBJECTS)
  kh_precompile(keyhole_tests keyhole_tests_precompiled)
endif()
kh_unity(keyhole_tests)
kh_add_tests(keyhole_tests unit)
if(NOT KH_SANITIZE)
  foreach(simd SSE4 AVX2)  # the best that the processor has runs in all tests
    add_test(NAME Simd.${simd} COMMAND keyhole_tests --gtest_brief=1 --gtest_filter=${KH_SIMD_FILTER})
    set_tests_properties(Simd.${simd} PROPERTIES LABELS unit SKIP_REGULAR_EXPRESSION "skipped: "
      ENVIRONMENT KEYHOLE_TEST_SIMD=${simd})
  endforeach()
  kh_add_pattern_test(UnitPatternsMatchTests keyhole_tests
    ${KH_THREADED_TESTS} ${KH_NOT_UNDER_TSAN} ${KH_NOT_UNDER_ASAN} ${KH_SIMD_TESTS})
endif()

# A module without CUDA, to test what the backend's factory does with good, wrong and missing modules.
add_library(keyhole_fake_cuda MODULE tests/fixtures/fake_cuda_module.cpp)
target_link_libraries(keyhole_fake_cuda PRIVATE keyhole_options fmt::fmt engine.backend.module)
target_include_directories(keyhole_fake_cuda PRIVATE ${CMAKE_SOURCE_DIR})
# A module whose device is the host.
if(KH_TEST_OBJECTS)
  add_custom_target(keyhole_host_cuda)
  file(CREATE_LINK ${KH_TEST_OBJECTS}/libkeyhole_host_cuda.so ${CMAKE_BINARY_DIR}/libkeyhole_host_cuda.so
    SYMBOLIC)
else()
  kh_cuda_module(keyhole_host_cuda tests/fixtures/host_cuda_module.cpp)
endif()
add_dependencies(keyhole_tests keyhole_fake_cuda keyhole_host_cuda)

# Tests on a device. They need only the engine and CUDA, so they run on a bare GPU machine with the libraries
# beside them. Without a device each is skipped by name.
file(GLOB KH_GPU_TESTS CONFIGURE_DEPENDS tests/gpu/*.cpp)
if(TARGET keyhole_cuda AND NOT KH_SANITIZE)
  add_test(NAME Build.WeightLoadsAreInFlight
    COMMAND ${CMAKE_SOURCE_DIR}/tests/gpu/check_sass.sh $<TARGET_FILE:keyhole_cuda>)
  set_tests_properties(Build.WeightLoadsAreInFlight PROPERTIES LABELS build
    SKIP_REGULAR_EXPRESSION "skipped: ")
  add_executable(keyhole_gpu_tests ${KH_GPU_TESTS} $<TARGET_OBJECTS:keyhole_device_tests>)
  target_link_libraries(keyhole_gpu_tests PRIVATE keyhole_reference keyhole_tests_options
    keyhole_cuda_kernels GTest::gtest_main)
  kh_precompile(keyhole_gpu_tests keyhole_tests_precompiled)
  set_target_properties(keyhole_gpu_tests PROPERTIES BUILD_RPATH "$ORIGIN")
  kh_add_tests(keyhole_gpu_tests gpu)
  if(KH_WINDOW)  # finds CLI11
    # Of the app's folders only app/models is taken whole: others would bring the desktop's libraries.
    file(GLOB KH_BENCH_COMMAND CONFIGURE_DEPENDS app/cli/bench*.cpp)
    add_executable(keyhole_bench tests/gpu/bench/main.cpp ${KH_BENCH_COMMAND} app/cli/command.cpp
      app/cli/options.cpp app/cli/model_option.cpp app/cli/output.cpp app/cli/progress.cpp
      app/base/assets.cpp app/base/command_text.cpp app/base/version.cpp app/base/termination.cpp
      app/base/figure_record.cpp app/base/saved_policies.cpp app/papers/speed_verdict.cpp
      app/papers/verdict_words.cpp $<TARGET_OBJECTS:app.models>)
    target_link_libraries(keyhole_bench PRIVATE keyhole_engine keyhole_quick_options
      nlohmann_json::nlohmann_json CLI11::CLI11 PkgConfig::CRYPTO)
    kh_precompile(keyhole_bench keyhole_precompiled)
    set_target_properties(keyhole_bench PROPERTIES BUILD_RPATH "$ORIGIN")
    kh_unity(keyhole_bench)
  endif()
endif()

if(TARGET keyhole_cuda AND NOT KH_SANITIZE)
  include(.cmake/ptx.cmake)
endif()

# Tests of the app and of the commands, which need no display.
file(GLOB KH_APP_TESTS CONFIGURE_DEPENDS tests/app/*.cpp)
if(TARGET keyhole AND NOT KH_SANITIZE)
  add_executable(keyhole_app_tests ${KH_APP_TESTS})
  target_link_libraries(keyhole_app_tests PRIVATE
    keyhole_window keyhole_reference keyhole_tests_options nlohmann_json::nlohmann_json
    PkgConfig::IMGUI PkgConfig::STB PkgConfig::ZIP GIF::GIF ZLIB::ZLIB GTest::gtest_main)
  kh_precompile(keyhole_app_tests keyhole_tests_precompiled)
  kh_unity(keyhole_app_tests)
  add_dependencies(keyhole_app_tests keyhole keyhole_host_cuda)
  kh_add_tests(keyhole_app_tests app)
  # Pages in the browsers that are installed, and the Python module, which needs numpy.
  if(KH_PYTHON)
    add_test(NAME Page.InABrowser COMMAND ${KH_PYTHON} -B ${CMAKE_SOURCE_DIR}/tests/page/page_test.py
             $<TARGET_FILE:keyhole> ${CMAKE_SOURCE_DIR})
    add_test(NAME Python.Wheel COMMAND ${KH_PYTHON} -B
             ${CMAKE_SOURCE_DIR}/tests/python/wheel_test.py ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
    add_test(NAME Python.ReadsRuns COMMAND ${KH_PYTHON} -B
             ${CMAKE_SOURCE_DIR}/tests/python/python_test.py $<TARGET_FILE:keyhole> ${CMAKE_SOURCE_DIR})
    set_tests_properties(Page.InABrowser Python.ReadsRuns Python.Wheel
      PROPERTIES LABELS app TIMEOUT 600 COST 1 SKIP_REGULAR_EXPRESSION "skipped: ")
  endif()
endif()

# Tests of the window. They need a display; ./test provides one.
file(GLOB KH_WINDOW_TESTS CONFIGURE_DEPENDS tests/window/*.cpp)
if(TARGET keyhole)
  pkg_check_modules(XTST QUIET IMPORTED_TARGET xtst x11)
  if(NOT XTST_FOUND)
    message(STATUS "Tests: those with a real pointer are left out, XTEST is missing (libxtst-dev)")
    list(FILTER KH_WINDOW_TESTS EXCLUDE REGEX "(_input|simulated_user)\\.cpp$")
  elseif(KH_SANITIZE STREQUAL "address")
    list(FILTER KH_WINDOW_TESTS INCLUDE REGEX "(_input|simulated_user)\\.cpp$")
  endif()
  add_executable(keyhole_window_tests ${KH_WINDOW_TESTS})
  target_link_libraries(keyhole_window_tests PRIVATE
    keyhole_window keyhole_reference keyhole_tests_options
    nlohmann_json::nlohmann_json PkgConfig::IMGUI
    PkgConfig::STB PkgConfig::ZIP PkgConfig::SYSTEMD GIF::GIF glfw OpenGL::GL
    GTest::gtest_main $<TARGET_NAME_IF_EXISTS:PkgConfig::XTST>)
  kh_precompile(keyhole_window_tests keyhole_tests_precompiled)
  kh_unity(keyhole_window_tests)
  add_dependencies(keyhole_window_tests keyhole keyhole_host_cuda)
  kh_add_tests(keyhole_window_tests window)
  if(XTST_FOUND AND NOT KH_SANITIZE)
    kh_add_pattern_test(WindowPatternsMatchTests keyhole_window_tests ${KH_INPUT_TESTS})
  endif()
endif()

# Benches for tests/bench/results: built on request (ninja keyhole_bench_engine), never run as tests.
add_executable(keyhole_bench_engine EXCLUDE_FROM_ALL tests/bench/bench_engine.cpp)
target_link_libraries(keyhole_bench_engine PRIVATE keyhole_reference)
add_executable(keyhole_bench_precision EXCLUDE_FROM_ALL tests/bench/bench_precision.cpp)
target_link_libraries(keyhole_bench_precision PRIVATE keyhole_reference)
if(TARGET keyhole)
  add_executable(keyhole_bench_window EXCLUDE_FROM_ALL tests/bench/bench_window.cpp)
  target_link_libraries(keyhole_bench_window PRIVATE keyhole_reference nlohmann_json::nlohmann_json)
  add_dependencies(keyhole_bench_window keyhole)
endif()

# kh_add_include_test(FOLDER HEADER ALLOWED): a source of the folder may, or may not, include the header.
function(kh_add_include_test folder header allowed)
  string(REPLACE "/" "." target ${folder})
  set(path "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
  string(REGEX REPLACE "[/.]" "_" name "${folder}_${header}")
  add_test(NAME Includes.${name}
    COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -x c++ "-I$<JOIN:${path},;-I>"
            -include ${header} /dev/null
    COMMAND_EXPAND_LISTS)
  set_tests_properties(Includes.${name} PROPERTIES LABELS build)
  if(NOT allowed)
    set_tests_properties(Includes.${name} PROPERTIES PASS_REGULAR_EXPRESSION "${header}: No such file")
  endif()
endfunction()

if(TARGET keyhole AND NOT KH_SANITIZE)
  add_executable(keyhole_cli_alone tests/cli/main.cpp)
  target_link_libraries(keyhole_cli_alone PRIVATE keyhole_cli keyhole_quick_options)
  kh_precompile(keyhole_cli_alone keyhole_precompiled)
  add_test(NAME Build.CommandsNeedNoWindow COMMAND keyhole_cli_alone info --options)
  set_tests_properties(Build.CommandsNeedNoWindow PROPERTIES LABELS build PASS_REGULAR_EXPRESSION "budget")
  add_test(NAME Build.InstallsAndMoves
    COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DSOURCE=${CMAKE_SOURCE_DIR}
            -DFOLDER=${CMAKE_BINARY_DIR}/installed -P ${CMAKE_SOURCE_DIR}/.cmake/check_install.cmake)
  set_tests_properties(Build.InstallsAndMoves PROPERTIES LABELS build TIMEOUT 300)
  kh_add_include_test(engine/session engine/trace/record.h TRUE)
  kh_add_include_test(engine/session app/state/app_state.h FALSE)
  kh_add_include_test(engine/backend/cuda engine/backend/cpu/cache.h FALSE)
  kh_add_include_test(engine/device engine/backend/module/cuda_module.h TRUE)
  kh_add_include_test(engine/device engine/backend/cuda/executor.h FALSE)
  kh_add_include_test(app/cli engine/backend/cuda/executor.h FALSE)
  kh_add_include_test(app/cli app/panels/panel.h FALSE)
  kh_add_include_test(app/panels engine/run/engine_status.h TRUE)
  kh_add_include_test(app/panels engine/live/engine.h FALSE)
  kh_add_include_test(app/panels engine/session/session.h FALSE)
  kh_add_include_test(app/panels engine/backend/backend.h FALSE)
  kh_add_include_test(app/state app/actions/action_table.h FALSE)
endif()

if(NOT KH_SANITIZE)
  add_test(NAME Build.CudaArchitecturesFitTheMachine
    COMMAND ${CMAKE_COMMAND} -P ${CMAKE_SOURCE_DIR}/.cmake/check_cuda_architectures.cmake)
  set_tests_properties(Build.CudaArchitecturesFitTheMachine PROPERTIES LABELS build)
  add_test(NAME Style.SourcesAreFormatted
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -P ${CMAKE_SOURCE_DIR}/.cmake/check_format.cmake)
  set_tests_properties(Style.SourcesAreFormatted PROPERTIES LABELS style SKIP_REGULAR_EXPRESSION "skipped: ")
  add_test(NAME Build.MissingLibrariesAreNamed
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DFOLDER=${CMAKE_BINARY_DIR}/without
            -DGENERATOR=${CMAKE_GENERATOR}
            -DCOMPILER=${CMAKE_CXX_COMPILER} -P ${CMAKE_SOURCE_DIR}/.cmake/check_packages.cmake)
  set_tests_properties(Build.MissingLibrariesAreNamed PROPERTIES LABELS build TIMEOUT 300)
endif()
