# SPDX-License-Identifier: Apache-2.0
# modcache_component(<component> SOURCES <files> [MAY_INCLUDE <components and libraries>])
# A static library modcache_<component>. Sources are listed one by one, never globbed: a file that
# nobody builds is then visible (tests/lint checks it for tests).
function(modcache_component component)
  cmake_parse_arguments(arg "" "" "SOURCES;MAY_INCLUDE" ${ARGN})
  add_library(modcache_${component} STATIC ${arg_SOURCES})
  target_link_libraries(modcache_${component} PUBLIC ${arg_MAY_INCLUDE})
endfunction()
