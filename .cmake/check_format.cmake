# Script: fails when a C++ file of ROOT is not formatted by clang-format 14. Skipped with other versions,
# which format differently.

find_program(CLANG_FORMAT NAMES clang-format-14 clang-format)
if(NOT CLANG_FORMAT)
  message("skipped: clang-format 14 is not installed")
  return()
endif()
execute_process(COMMAND ${CLANG_FORMAT} --version OUTPUT_VARIABLE version)
if(NOT version MATCHES "version 14\\.")
  message("skipped: clang-format 14 is needed, this is ${version}")
  return()
endif()
file(GLOB_RECURSE sources ${ROOT}/engine/*.h ${ROOT}/engine/*.cpp ${ROOT}/app/*.h ${ROOT}/app/*.cpp
     ${ROOT}/tests/*.h ${ROOT}/tests/*.cpp)
execute_process(COMMAND ${CLANG_FORMAT} --dry-run --Werror ${sources}
  RESULT_VARIABLE result ERROR_VARIABLE faults)
if(result)
  string(REGEX MATCHALL "[^\n]*error: code should be clang-formatted" lines "${faults}")
  list(LENGTH lines n_lines)
  list(JOIN lines "\n" text)
  message(FATAL_ERROR "${n_lines} places to format (clang-format -i FILE):\n${text}")
endif()
