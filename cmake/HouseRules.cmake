# SPDX-License-Identifier: Apache-2.0
# How all code of this project is compiled. Included once, before any target exists, so that no
# target can forget it.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON) # the components end up in one shared library
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# With CMAKE_UNITY_BUILD. torch's headers take up to 9 s per object, so fewer and larger objects save more
# than precompiled headers do: those take 22 s and 475 MB to make, and save 5 s per object (GCC 12).
if(NOT CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()

add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wformat=2 -Wundef -Wcast-align
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
  $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # It takes "literal" + std::string for a copy onto itself (its bug 105651).
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Locks are annotated (csrc/base/mutex.h); only clang can check them.
  add_compile_options(-Wthread-safety)
endif()
if(MODCACHE_WARNINGS_AS_ERRORS)
  add_compile_options(-Werror)
endif()

if(MODCACHE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MODCACHE_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  set(modcache_fuzz_sanitizers -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_compile_options(${modcache_fuzz_sanitizers} -g1 -O1)
  add_link_options(-fsanitize=address,undefined)
endif()
if(MODCACHE_SANITIZE)
  if(MODCACHE_WITH_TORCH)
    message(FATAL_ERROR "MODCACHE_SANITIZE needs -DMODCACHE_WITH_TORCH=OFF: LibTorch is not "
                        "instrumented, so what a sanitizer would report of it means nothing.")
  endif()
  if(MODCACHE_SANITIZE STREQUAL "address")
    set(modcache_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
  elseif(MODCACHE_SANITIZE STREQUAL "thread")
    set(modcache_sanitizers -fsanitize=thread)
  else()
    message(FATAL_ERROR "MODCACHE_SANITIZE=${MODCACHE_SANITIZE}: valid are address, thread, and empty.")
  endif()
  add_compile_options(${modcache_sanitizers} -fno-omit-frame-pointer)
  add_link_options(${modcache_sanitizers})
endif()
