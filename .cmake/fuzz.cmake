# Fuzz targets of the file readers (libFuzzer, so Clang). As a test, each runs for KH_FUZZ_SECONDS, with
# fixtures as seeds. To run one longer, in the build folder:
#     ./fuzz_tokenizer -max_total_time=600 corpus/tokenizer seeds/tokenizer

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "KH_FUZZ needs Clang (packages clang and libclang-rt-dev, or clang-16 and "
                      "libclang-rt-16-dev); this is ${CMAKE_CXX_COMPILER_ID}")
endif()
set(KH_FUZZ_SECONDS 1 CACHE STRING "of each fuzz target as a test")
set(fuzz_flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)

# The readers and what they need, and code that uses the runs they read.
file(GLOB_RECURSE sources CONFIGURE_DEPENDS engine/base/*.cpp engine/model/*.cpp engine/policy/*.cpp
     engine/trace/*.cpp engine/analysis/*.cpp)
list(FILTER sources EXCLUDE REGEX "json_once")
list(APPEND sources engine/figure/colormap.cpp engine/figure/reduce.cpp engine/run/command.cpp
     engine/run/answer.cpp engine/run/command_script.cpp
     engine/eval/answer_file.cpp engine/eval/data_file.cpp app/actions/script_step.cpp
     app/state/annotations.cpp app/state/settings.cpp app/base/assets.cpp app/lessons/lesson.cpp
     app/lessons/lesson_claims.cpp app/lessons/lesson_file.cpp app/models/catalog.cpp
     app/models/find_model.cpp app/lab/hand_in.cpp app/lab/lab.cpp engine/eval/tasks.cpp
     engine/eval/drawn_parts.cpp engine/eval/instruction_task.cpp engine/eval/ruler_tasks.cpp
     engine/eval/words.cpp app/view/atlas_colors.cpp app/view/heat_view.cpp app/view/view_state.cpp)
add_library(keyhole_readers STATIC ${sources})
target_compile_options(keyhole_readers PUBLIC ${fuzz_flags} PRIVATE -fsanitize=fuzzer-no-link)
target_link_options(keyhole_readers PUBLIC ${fuzz_flags})
target_compile_definitions(keyhole_readers PUBLIC _GLIBCXX_ASSERTIONS)
target_include_directories(keyhole_readers PUBLIC ${CMAKE_SOURCE_DIR} PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_link_libraries(keyhole_readers PUBLIC keyhole_options fmt::fmt Threads::Threads
  nlohmann_json::nlohmann_json PkgConfig::HWY PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::ZIP)
kh_unity(keyhole_readers)
target_precompile_headers(keyhole_readers PRIVATE ${KH_PRECOMPILED})

file(GLOB targets CONFIGURE_DEPENDS tests/fuzz/*.cpp)
add_executable(keyhole_fuzzers ${targets})
target_compile_options(keyhole_fuzzers PRIVATE -fsanitize=fuzzer-no-link)
target_link_options(keyhole_fuzzers PRIVATE -fsanitize=fuzzer)
target_link_libraries(keyhole_fuzzers PRIVATE keyhole_readers)
target_precompile_headers(keyhole_fuzzers REUSE_FROM keyhole_readers)
kh_unity(keyhole_fuzzers)

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
    script answers data lesson hand_in)
  file(GLOB seeds CONFIGURE_DEPENDS RELATIVE ${tests} tests/fuzz/seeds/${name}/*)
  kh_add_fuzzer(${name} ${fixtures_of_${name}} ${seeds})
endforeach()
