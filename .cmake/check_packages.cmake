# Script: configures ROOT in FOLDER with a missing library (fmt) and one that is too old (Highway). Fails
# unless the messages name both with their packages.

file(REMOVE_RECURSE ${FOLDER})
file(WRITE ${FOLDER}/libhwy.pc "Name: libhwy\nDescription: an old one\nVersion: 0.16.0\n")
set(ENV{PKG_CONFIG_PATH} ${FOLDER})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${ROOT} -B ${FOLDER}/build -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DKH_CUDA=OFF -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
  RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE text)
file(REMOVE_RECURSE ${FOLDER})
if(NOT result)
  message(FATAL_ERROR "configured without fmt and with an old libhwy")
endif()
foreach(line "fmt 9.1 or later is needed, none was found (package libfmt-dev)"
    "libhwy 1.0.3 or later is needed, 0.16.0 was found (package libhwy-dev)" "apt-get install libfmt-dev\n")
  string(FIND "${text}" "${line}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "no line '${line}' in:\n${text}")
  endif()
endforeach()
