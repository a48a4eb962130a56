# SPDX-License-Identifier: Apache-2.0
# modcache_prefer_static(<target> <header> <library>): an imported target for a C library, its .a
# if there is one. Linked statically, the library's symbols stay inside libmodcache.so and cannot
# clash with a host's own copy of it.
include(FindPackageHandleStandardArgs)

function(modcache_prefer_static package target header library)
  find_path(${package}_INCLUDE_DIR ${header})
  find_library(${package}_LIBRARY NAMES lib${library}.a ${library})
  mark_as_advanced(${package}_INCLUDE_DIR ${package}_LIBRARY)
  find_package_handle_standard_args(${package} REQUIRED_VARS ${package}_LIBRARY ${package}_INCLUDE_DIR)
  set(${package}_FOUND ${${package}_FOUND} PARENT_SCOPE)
  if(NOT ${package}_FOUND OR TARGET ${target})
    return()
  endif()
  if(NOT ${package}_LIBRARY MATCHES "\\.a$")
    message(STATUS "${package}: no lib${library}.a here, so libmodcache.so will load the shared one")
  endif()
  add_library(${target} UNKNOWN IMPORTED)
  set_target_properties(
    ${target} PROPERTIES IMPORTED_LOCATION ${${package}_LIBRARY}
                         INTERFACE_INCLUDE_DIRECTORIES ${${package}_INCLUDE_DIR})
endfunction()
