# KH_SHADERS_CPP: a generated source with the text of all files in shaders/. It defines shader_source()
# (app/gl/shader_source.h). KH_PAGE_CPP: the same of assets/page, with page_source() (app/view/page_source.h).

include(.cmake/embed.cmake)
file(GLOB KH_SHADERS CONFIGURE_DEPENDS shaders/*.glsl shaders/*.vert shaders/*.frag)
set(KH_SHADERS_CPP ${CMAKE_BINARY_DIR}/generated/shaders.cpp)
kh_embed(${KH_SHADERS_CPP} shader_source app/gl/shader_source.h ${KH_SHADERS})
file(GLOB KH_PAGE CONFIGURE_DEPENDS assets/page/*.html assets/page/*.css assets/page/*.js)
set(KH_PAGE_CPP ${CMAKE_BINARY_DIR}/generated/page.cpp)
kh_embed(${KH_PAGE_CPP} page_source app/view/page_source.h ${KH_PAGE})
