# Read by cpack, and run before a wheel is made, where KH_SIMD is HOST: such a package would stop on another
# processor.
message(FATAL_ERROR "this build is for this machine's processor alone (KH_SIMD=HOST); for a package "
  "build with: cmake --preset release && cmake --build --preset release")
