# Script: cmake -DSOURCE=. -DOUTPUT=commit.inc -P commit.cmake writes the commit of a clone as a C string; an
# empty one where there is no clone or no git.

execute_process(COMMAND git -C ${SOURCE} rev-parse --short=10 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
# A folder without .git may lie inside of somebody else's clone.
if(NOT status EQUAL 0 OR NOT EXISTS ${SOURCE}/.git)
  set(commit "")
endif()
file(WRITE ${OUTPUT} "\"${commit}\"\n")
