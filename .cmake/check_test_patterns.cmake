# Script: cmake -DPROGRAM=keyhole_tests -DPATTERNS=Lanes.*:*Queue* -P check_test_patterns.cmake fails and
# names the patterns that match no test of the program.

string(REPLACE ":" ";" patterns "${PATTERNS}")
foreach(pattern IN LISTS patterns)
  execute_process(COMMAND ${PROGRAM} --gtest_list_tests --gtest_filter=${pattern}
    OUTPUT_VARIABLE tests COMMAND_ERROR_IS_FATAL ANY)
  if(NOT tests MATCHES "\n  ")  # tests are indented, below their suites
    list(APPEND unused ${pattern})
  endif()
endforeach()
if(unused)
  list(JOIN unused " " unused)
  message(FATAL_ERROR "no test of ${PROGRAM} matches ${unused}: change it in .cmake/tests.cmake")
endif()
