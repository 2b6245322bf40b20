# Fuzz targets of the file readers. libFuzzer's library, which is a part of Clang, is linked with the engine
# that AddressSanitizer watches, so that the engine is compiled once for its tests and for the fuzzers, by any
# compiler: it calls a function at each branch and at each comparison of the readers, and
# tests/fuzz/coverage.cpp counts the branches for libFuzzer. As a test, each target runs for KH_FUZZ_SECONDS,
# with fixtures as seeds. To run one longer, in the build folder:
#     ./fuzz_tokenizer -max_total_time=600 corpus/tokenizer seeds/tokenizer

# The readers and what they need, and code that uses the runs they read.
set(covered base model policy run trace analysis eval)
set(coverage -fsanitize-coverage=trace-pc,trace-cmp)
foreach(folder IN LISTS covered)
  target_compile_options(engine.${folder} PRIVATE ${coverage})
endforeach()
# All other programs count nothing.
target_sources(keyhole_engine PRIVATE tests/fuzz/no_coverage.cpp)

file(GLOB found /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-${CMAKE_SYSTEM_PROCESSOR}.a)
list(SORT found COMPARE NATURAL ORDER DESCENDING)
list(POP_FRONT found found)
set(KH_LIBFUZZER "${found}" CACHE FILEPATH "libFuzzer's library, libclang_rt.fuzzer-*.a")
if(NOT KH_LIBFUZZER)
  message(STATUS "Fuzz targets: left out, libFuzzer is missing (libclang-rt-dev)")
  return()
endif()
set(KH_FUZZ_SECONDS 1 CACHE STRING "of each fuzz target as a test")

file(GLOB targets CONFIGURE_DEPENDS tests/fuzz/fuzz_*.cpp)
add_executable(keyhole_fuzzers tests/fuzz/main.cpp ${targets}
  app/actions/script_step.cpp app/state/annotations.cpp app/state/settings.cpp app/base/assets.cpp
  app/base/saved_policies.cpp
  app/lessons/lesson.cpp app/lessons/lesson_claims.cpp app/lessons/lesson_file.cpp app/models/catalog.cpp
  app/models/find_model.cpp app/lab/hand_in.cpp app/lab/lab.cpp app/view/atlas_colors.cpp
  app/view/heat_view.cpp app/view/view_state.cpp tests/fuzz/coverage.cpp)
target_compile_options(keyhole_fuzzers PRIVATE ${coverage})
target_link_options(keyhole_fuzzers PRIVATE LINKER:--wrap=__sanitizer_cov_trace_pc)
target_link_libraries(keyhole_fuzzers PRIVATE keyhole_engine keyhole_quick_options
  nlohmann_json::nlohmann_json PkgConfig::ZIP ${KH_LIBFUZZER})
kh_precompile(keyhole_fuzzers keyhole_precompiled)
kh_unity(keyhole_fuzzers)
# It must not count itself.
set_source_files_properties(tests/fuzz/coverage.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
  SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-fno-sanitize=all;-fno-sanitize-coverage=trace-pc,trace-cmp")

# kh_add_fuzzer(NAME SEED...): adds a name of the program and its test. Seeds are files below tests/.
function(kh_add_fuzzer name)
  file(CREATE_LINK keyhole_fuzzers ${CMAKE_BINARY_DIR}/fuzz_${name} SYMBOLIC)
  set(new ${CMAKE_BINARY_DIR}/corpus/${name})
  set(seeds ${CMAKE_BINARY_DIR}/seeds/${name})
  file(MAKE_DIRECTORY ${new} ${seeds})
  foreach(seed IN LISTS ARGN)
    string(REPLACE "/" "_" file ${seed})
    configure_file(${CMAKE_SOURCE_DIR}/tests/${seed} ${seeds}/${file} COPYONLY)
  endforeach()
  add_test(NAME Fuzz.${name}
    COMMAND ${CMAKE_BINARY_DIR}/fuzz_${name} -max_total_time=${KH_FUZZ_SECONDS} -max_len=32768 -timeout=10
            -rss_limit_mb=2048 -artifact_prefix=${CMAKE_BINARY_DIR}/ -print_final_stats=1 ${new} ${seeds})
  math(EXPR limit "${KH_FUZZ_SECONDS} + 300")
  set_tests_properties(Fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT ${limit})
endfunction()

set(tests ${CMAKE_SOURCE_DIR}/tests)
file(GLOB configs CONFIGURE_DEPENDS RELATIVE ${tests}
     tests/fixtures/*/config.json tests/fixtures/*/*/config.json)
file(GLOB tokenizers CONFIGURE_DEPENDS RELATIVE ${tests} tests/fixtures/tokenizers/*.json)
list(FILTER tokenizers EXCLUDE REGEX "cases")
# Seeds hold inputs that once broke a reader (make_model_seeds.py makes those of models). Test fixtures are
# added.
set(fixtures_of_safetensors fixtures/types.safetensors)
set(fixtures_of_gguf fixtures/gguf/types.gguf fixtures/gguf/keys.gguf)
set(fixtures_of_config ${configs})
set(fixtures_of_tokenizer ${tokenizers})
foreach(name safetensors gguf parts config tokenizer vocabulary folder trace spool notes settings lane_spec
    script answers data lesson hand_in saved_policy)
  file(GLOB seeds CONFIGURE_DEPENDS RELATIVE ${tests} tests/fuzz/seeds/${name}/*)
  kh_add_fuzzer(${name} ${fixtures_of_${name}} ${seeds})
endforeach()
