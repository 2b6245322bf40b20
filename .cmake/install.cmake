# Installation (`cmake --install FOLDER --prefix DIR`) and packages (`cpack` in the build folder): a .deb for
# the release of Debian or Ubuntu that builds it, and an archive with the libraries, for any folder. The
# program finds its files by their place beside its own, so an installation may be moved.

include(GNUInstallDirs)
set(KH_ASSETS ${CMAKE_INSTALL_DATADIR}/keyhole/assets)
# The CUDA module, where engine/device looks for it; in the archive all libraries.
set(KH_LIBRARIES lib/keyhole)
file(RELATIVE_PATH KH_ASSETS_FROM_PROGRAM /${CMAKE_INSTALL_BINDIR} /${KH_ASSETS})
set_source_files_properties(app/base/assets.cpp PROPERTIES
  COMPILE_DEFINITIONS KH_ASSETS="${KH_ASSETS_FROM_PROGRAM}")
# Programs in the build folder find them there.
file(CREATE_LINK ${CMAKE_SOURCE_DIR}/assets ${CMAKE_BINARY_DIR}/assets SYMBOLIC)
# The distribution's Python has the distribution's numpy; another one may come first on PATH.
find_program(KH_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(KH_PYTHON python3)
if(NOT TARGET keyhole OR KH_SANITIZE)
  return()
endif()

# Completion and manual pages, which the program makes from its own tables.
set(KH_MADE ${CMAKE_BINARY_DIR}/made)
file(GLOB KH_MANUAL CONFIGURE_DEPENDS assets/manual/*.md)
add_custom_command(
  OUTPUT ${KH_MADE}/man1/keyhole.1
  COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:keyhole> -DMANUAL=${CMAKE_SOURCE_DIR}/assets/manual
          -DFOLDER=${KH_MADE} -P ${CMAKE_SOURCE_DIR}/.cmake/make_pages.cmake
  DEPENDS keyhole ${KH_MANUAL} ${CMAKE_SOURCE_DIR}/.cmake/make_pages.cmake
  COMMENT "Writing completion and manual pages" VERBATIM)
add_custom_target(keyhole_pages ALL DEPENDS ${KH_MADE}/man1/keyhole.1)

# Of the archive: libraries that its libraries need are looked for there too, which RUNPATH would not do.
target_link_options(keyhole PRIVATE LINKER:--disable-new-dtags)
set_target_properties(keyhole PROPERTIES INSTALL_RPATH "$ORIGIN/../${KH_LIBRARIES}")
install(TARGETS keyhole RUNTIME_DEPENDENCY_SET keyhole_libraries COMPONENT program)
if(TARGET keyhole_cuda)
  install(TARGETS keyhole_cuda DESTINATION ${KH_LIBRARIES} COMPONENT program)
endif()
foreach(folder lab lessons manual models policies prompts python tasks)
  install(DIRECTORY assets/${folder} DESTINATION ${KH_ASSETS} COMPONENT program
    PATTERN modeling_llama_mlkv.py EXCLUDE)
endforeach()
file(GLOB KH_MLKV RELATIVE ${CMAKE_SOURCE_DIR}/assets assets/models/*/modeling_llama_mlkv.py)
foreach(file IN LISTS KH_MLKV)  # links to one file
  cmake_path(GET file PARENT_PATH folder)
  install(FILES engine/model/modeling_llama_mlkv.py DESTINATION ${KH_ASSETS}/${folder} COMPONENT program)
endforeach()
install(DIRECTORY ${KH_MADE}/man1 ${KH_MADE}/man7 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
install(DIRECTORY ${KH_MADE}/completion/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT program)
set(KH_DESKTOP assets/desktop/keyhole)
install(FILES ${KH_DESKTOP}.desktop DESTINATION ${CMAKE_INSTALL_DATADIR}/applications COMPONENT program)
install(FILES ${KH_DESKTOP}.svg DESTINATION ${CMAKE_INSTALL_DATADIR}/icons/hicolor/scalable/apps
  COMPONENT program)
install(FILES ${KH_DESKTOP}.metainfo.xml DESTINATION ${CMAKE_INSTALL_DATADIR}/metainfo COMPONENT program)
install(FILES ${KH_DESKTOP}.xml DESTINATION ${CMAKE_INSTALL_DATADIR}/mime/packages COMPONENT program)

# The libraries of the archive. The system's own stay: the C and C++ libraries, what graphics drivers use or
# talk to, and fonts. Cairo needs some of X11 that a bare desktop lacks: libXrender, libxcb-render and -shm.
set(KH_SYSTEM_LIBRARIES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s|z|expat)\\.so"
  "^lib(GL|EGL|OpenGL|X[^r]|Xrandr|xcb\\.|wayland|drm|fontconfig|freetype)")
install(RUNTIME_DEPENDENCY_SET keyhole_libraries
  PRE_EXCLUDE_REGEXES ${KH_SYSTEM_LIBRARIES}
  LIBRARY DESTINATION ${KH_LIBRARIES} COMPONENT libraries EXCLUDE_FROM_ALL)

# Packages are for other machines too.
set(refuse "")
if(KH_SIMD STREQUAL "HOST")
  set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/.cmake/refuse_host_package.cmake)
  set(refuse COMMAND ${CMAKE_COMMAND} -P ${CPACK_PROJECT_CONFIG_FILE})
endif()

# A Python wheel: the folder of the archive, and the Python module.
if(KH_PYTHON)
  set(stage ${CMAKE_BINARY_DIR}/wheel/prefix)
  set(install ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --prefix ${stage} --strip --component)
  add_custom_target(wheel
    ${refuse}
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${stage}
    COMMAND ${install} program
    COMMAND ${install} libraries
    COMMAND ${KH_PYTHON} -B ${CMAKE_SOURCE_DIR}/.cmake/make_wheel.py ${stage}
            ${CMAKE_SOURCE_DIR}/assets/python/keyhole.py ${PROJECT_VERSION} ${CMAKE_BINARY_DIR}/wheel
    DEPENDS keyhole keyhole_pages
    COMMENT "Making the Python wheel" USES_TERMINAL VERBATIM)
endif()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_VENDOR Keyhole)
set(CPACK_PACKAGE_CONTACT "the maintainers of Keyhole")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "playground for KV-cache eviction in language models")
set(CPACK_PACKAGE_FILE_NAME keyhole-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_INSTALL_DIRECTORY keyhole)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# libGL is opened at run time, and no library depends on a font.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libgl1, fonts-dejavu-core")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libgl1-mesa-dri")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-pip, xdg-desktop-portal")  # `keyhole get`; file dialogs
# The .deb has what is installed without asking for libraries, the archive has all.
set(CPACK_COMPONENTS_ALL program libraries)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
include(CPack)
