# SPDX-License-Identifier: Apache-2.0
# modcache_room(<room> SOURCES <files> [MAY_INCLUDE <rooms and libraries>])
# A static library modcache_<room>. Sources are listed one by one, never globbed: a file that
# nobody builds is then visible (tests/lint checks it for tests).
function(modcache_room room)
  cmake_parse_arguments(arg "" "" "SOURCES;MAY_INCLUDE" ${ARGN})
  add_library(modcache_${room} STATIC ${arg_SOURCES})
  target_link_libraries(modcache_${room} PUBLIC ${arg_MAY_INCLUDE})
endfunction()
