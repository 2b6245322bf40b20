# Finds the compiler and the libraries. kh_find looks for one; kh_check_found stops the configuration if some
# are missing or too old. It prints one line for each: the needed version, the found one, and the package to
# install on Debian and Ubuntu.

find_package(PkgConfig QUIET)  # not in a function, since its variables must last

# kh_find(NAME MINIMUM PACKAGE [PKG_CONFIG MODULE] [COMPONENTS NAME...])
# Finds a library by its CMake files, or by pkg-config, which makes the target PkgConfig::NAME. MINIMUM 0: any
# version. PACKAGE: one or more, in quotes.
function(kh_find name minimum package)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "PKG_CONFIG" "COMPONENTS")
  set(why "")
  if(NOT arg_PKG_CONFIG)
    set(library ${name})
    # The minimum is compared below: a library's CMake files may refuse a newer major version, which works
    # too.
    find_package(${name} QUIET COMPONENTS ${arg_COMPONENTS})
    if(NOT ${name}_FOUND AND ${name}_CONSIDERED_CONFIGS)
      list(JOIN ${name}_CONSIDERED_CONFIGS ", " files)
      set(why " that can be used (${files}: ${${name}_NOT_FOUND_MESSAGE})")
    endif()
  else()
    set(library ${arg_PKG_CONFIG})
    if(PkgConfig_FOUND)
      pkg_check_modules(${name} QUIET IMPORTED_TARGET ${library})
      if(TARGET PkgConfig::${name})
        # Needed by no C library since 2.34, and a macro of it makes the compiler refuse precompiled headers.
        get_property(options TARGET PkgConfig::${name} PROPERTY INTERFACE_COMPILE_OPTIONS)
        list(REMOVE_ITEM options -pthread)
        set_target_properties(PkgConfig::${name} PROPERTIES INTERFACE_COMPILE_OPTIONS "${options}")
      endif()
    else()
      set(package "pkg-config ${package}")
      set(why ", as pkg-config is not installed")
    endif()
  endif()
  set(found "${${name}_VERSION}")
  if(${name}_FOUND AND (NOT minimum OR found VERSION_GREATER_EQUAL minimum))
    message(STATUS "${library} ${found}")
    return()
  endif()
  set(needed "${library}")
  if(minimum)
    string(APPEND needed " ${minimum} or later")
  endif()
  if(${name}_FOUND)
    set_property(GLOBAL APPEND PROPERTY KH_TOO_OLD
      "${needed} is needed, ${found} was found (package ${package})")
  else()
    set_property(GLOBAL APPEND PROPERTY KH_MISSING
      "${needed} is needed, none was found${why} (package ${package})")
    set_property(GLOBAL APPEND_STRING PROPERTY KH_TO_INSTALL " ${package}")
  endif()
endfunction()

# kh_check_compiler(GNU VERSION Clang VERSION): checks the compiler's version; accepts other compilers.
function(kh_check_compiler)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "GNU;Clang" "")
  set(minimum "${arg_${CMAKE_CXX_COMPILER_ID}}")
  if(minimum AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS minimum)
    string(REPLACE "GNU" "g++" name "${CMAKE_CXX_COMPILER_ID}")
    string(TOLOWER "${name}" name)
    set_property(GLOBAL APPEND PROPERTY KH_TOO_OLD "${name} ${minimum} or later is needed, \
${CMAKE_CXX_COMPILER_VERSION} was found (package ${name}-${minimum}; then name it in CXX)")
  endif()
endfunction()

function(kh_check_found)
  get_property(missing GLOBAL PROPERTY KH_MISSING)
  get_property(too_old GLOBAL PROPERTY KH_TOO_OLD)
  get_property(to_install GLOBAL PROPERTY KH_TO_INSTALL)
  if(NOT missing AND NOT too_old)
    return()
  endif()
  set(lines ${missing} ${too_old})
  list(JOIN lines "\n  " lines)
  set(advice "")
  if(missing)
    string(APPEND advice "\nOn Debian or Ubuntu, as root: apt-get install${to_install}")
  endif()
  if(too_old)
    string(APPEND advice "\nWhere the package is the newest of its release, the release is too old: \
Debian 12 and Ubuntu 24.04 are the first that do. Else build that library from its sources and name its \
folder in CMAKE_PREFIX_PATH and PKG_CONFIG_PATH.")
  endif()
  # A notice, because CMake would rewrap the lines of an error.
  message(NOTICE "Keyhole cannot be built here:\n  ${lines}${advice}")
  message(FATAL_ERROR "libraries are missing or too old; the lines above name them")
endfunction()
