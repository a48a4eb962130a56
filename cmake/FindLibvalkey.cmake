# SPDX-License-Identifier: Apache-2.0
# Defines the imported target Libvalkey::Libvalkey, with TLS: the system's library where it has one,
# else one made from the sources below Libvalkey_SOURCE (or the variable of the environment), which
# tests/setup.sh fetches: PyPI's source package of libvalkey carries them.
include(FindPackageHandleStandardArgs)

find_path(Libvalkey_INCLUDE_DIR valkey/valkey.h)
find_library(Libvalkey_LIBRARY NAMES libvalkey.a valkey)
find_library(Libvalkey_TLS_LIBRARY NAMES libvalkey_tls.a valkey_tls)
mark_as_advanced(Libvalkey_INCLUDE_DIR Libvalkey_LIBRARY Libvalkey_TLS_LIBRARY)
set(Libvalkey_SOURCE "$ENV{MODCACHE_LIBVALKEY_SOURCE}" CACHE PATH "The folder with libvalkey's include/ and src/")
if(NOT Libvalkey_SOURCE)
  # As tests/setup.sh leaves it.
  file(GLOB modcache_libvalkey_sources LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/build/libvalkey-*/vendor/libvalkey)
  if(modcache_libvalkey_sources)
    list(GET modcache_libvalkey_sources -1 Libvalkey_SOURCE)
  endif()
endif()
find_package(OpenSSL QUIET)

if(Libvalkey_INCLUDE_DIR AND Libvalkey_LIBRARY AND Libvalkey_TLS_LIBRARY)
  set(modcache_libvalkey "${Libvalkey_LIBRARY}")
elseif(EXISTS "${Libvalkey_SOURCE}/src/cluster.c")
  set(modcache_libvalkey "${Libvalkey_SOURCE}")
endif()
find_package_handle_standard_args(
  Libvalkey REQUIRED_VARS modcache_libvalkey OPENSSL_FOUND
  REASON_FAILURE_MESSAGE "It needs OpenSSL's headers, and libvalkey 0.2 or newer: the system's, or its sources in Libvalkey_SOURCE")
if(NOT Libvalkey_FOUND OR TARGET Libvalkey::Libvalkey)
  return()
endif()

add_library(Libvalkey::Libvalkey INTERFACE IMPORTED GLOBAL)
if(EXISTS "${Libvalkey_SOURCE}/src/cluster.c" AND modcache_libvalkey STREQUAL Libvalkey_SOURCE)
  enable_language(C)
  set(modcache_libvalkey_files)
  foreach(name IN ITEMS adlist alloc async cluster command conn crc16 dict dns net read sds sockcompat timer tls
                        valkey vkutil)
    list(APPEND modcache_libvalkey_files ${Libvalkey_SOURCE}/src/${name}.c)
  endforeach()
  add_library(modcache_libvalkey STATIC EXCLUDE_FROM_ALL ${modcache_libvalkey_files})
  # Its warnings are its authors' concern.
  target_compile_options(modcache_libvalkey PRIVATE -w)
  set_target_properties(modcache_libvalkey PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON
                                                      UNITY_BUILD OFF)
  target_compile_definitions(modcache_libvalkey PRIVATE VALKEY_USE_THREADS)
  target_include_directories(modcache_libvalkey PRIVATE ${Libvalkey_SOURCE}/src ${Libvalkey_SOURCE}/include/valkey)
  target_include_directories(modcache_libvalkey SYSTEM PUBLIC ${Libvalkey_SOURCE}/include)
  target_link_libraries(modcache_libvalkey PUBLIC OpenSSL::SSL OpenSSL::Crypto)
  target_link_libraries(Libvalkey::Libvalkey INTERFACE modcache_libvalkey)
else()
  target_include_directories(Libvalkey::Libvalkey SYSTEM INTERFACE ${Libvalkey_INCLUDE_DIR})
  target_link_libraries(Libvalkey::Libvalkey INTERFACE ${Libvalkey_TLS_LIBRARY} ${Libvalkey_LIBRARY} OpenSSL::SSL
                                                       OpenSSL::Crypto)
endif()
