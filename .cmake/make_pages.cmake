# Script: cmake -DPROGRAM=keyhole -DMANUAL=assets/manual -DFOLDER=made -P make_pages.cmake writes completion
# files below FOLDER/completion and manual pages in FOLDER/man1 and man7.

file(REMOVE_RECURSE ${FOLDER})
set(ENV{XDG_STATE_HOME} ${FOLDER})  # so that it names no crash of the user's

function(kh_write file)
  cmake_path(GET file PARENT_PATH folder)
  file(MAKE_DIRECTORY ${FOLDER}/${folder})
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${FOLDER}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

kh_write(completion/bash-completion/completions/keyhole completion bash)
kh_write(completion/zsh/site-functions/_keyhole completion zsh)
kh_write(completion/fish/vendor_completions.d/keyhole.fish completion fish)
kh_write(man1/keyhole.1 help --man)
file(GLOB pages ${MANUAL}/*.md)
foreach(page IN LISTS pages)
  cmake_path(GET page STEM name)
  if(NOT name STREQUAL "index")  # stands in keyhole(1)
    kh_write(man7/keyhole-${name}.7 help ${name} --man)
  endif()
endforeach()
