# Writes a hash of what a layout at the boundary of the CUDA module can depend on (cuda_module_abi): the
# headers below it, and the compiler. The file stays as it is where nothing changed.

set(of "${COMPILER}")
foreach(folder base model policy backend backend/module)
  file(GLOB headers ${SOURCE}/engine/${folder}/*.h)
  foreach(header IN LISTS headers)
    file(SHA256 ${header} hash)
    string(APPEND of " ${hash}")
  endforeach()
endforeach()
string(SHA256 hash "${of}")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "\"${hash}\"\n")
