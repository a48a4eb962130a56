# SPDX-License-Identifier: Apache-2.0
# modcache_room(<room> SOURCES <files> [MAY_INCLUDE <rooms and libraries>])
# A static library modcache_<room>. Sources are listed one by one, never globbed: a file that
# nobody builds is then visible (tests/lint checks it for tests).
function(modcache_room room)
  cmake_parse_arguments(arg "" "" "SOURCES;MAY_INCLUDE" ${ARGN})
  add_library(modcache_${room} STATIC ${arg_SOURCES})
  target_link_libraries(modcache_${room} PUBLIC ${arg_MAY_INCLUDE})
  if(MODCACHE_PRECOMPILE_TORCH AND "LibTorch::LibTorch" IN_LIST arg_MAY_INCLUDE)
    modcache_precompile_torch(modcache_${room})
  endif()
endfunction()

# Reading torch's headers is two thirds of what it takes to compile a file that includes them.
function(modcache_precompile_torch target)
  target_precompile_headers(${target} PRIVATE <torch/csrc/jit/api/module.h> <torch/library.h>
                            <torch/custom_class.h> <ATen/core/dispatch/Dispatcher.h>)
endfunction()
