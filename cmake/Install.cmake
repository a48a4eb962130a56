# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down, for C++ hosts and for the Python package.
include(GNUInstallDirs)

if(SKBUILD)
  # Inside the wheel: site-packages/modcache beside site-packages/torch.
  set_target_properties(modcache PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib")
  install(TARGETS modcache LIBRARY DESTINATION modcache)
  install(FILES ${PROJECT_BINARY_DIR}/libmodcache.json DESTINATION modcache)
  install(TARGETS modcache_guards LIBRARY DESTINATION modcache)
  # Among the commands of the environment; `modcache path` looks for the library from there.
  install(TARGETS modcache_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  return()
endif()

include(CMakePackageConfigHelpers)
set(modcache_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/modcache)
# The torch it was built against: a host may load libmodcache.so before torch itself.
set_target_properties(modcache PROPERTIES INSTALL_RPATH "${LibTorch_LIBRARY_DIR}")

install(TARGETS modcache EXPORT modcacheTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS modcache_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/torchscript_ops/include/modcache
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_BINARY_DIR}/libmodcache.json DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT modcacheTargets NAMESPACE modcache:: DESTINATION ${modcache_config_dir})

# A host calls no symbol of the library, which registers its operators when it is loaded: modcache.h
# finds them in torch's dispatcher. A linker that runs with --as-needed (Ubuntu's default) would
# drop it; GNU ld does so even when --undefined names a symbol of it.
target_link_options(modcache INTERFACE LINKER:--no-as-needed)

configure_package_config_file(cmake/modcacheConfig.cmake.in modcacheConfig.cmake
                              INSTALL_DESTINATION ${modcache_config_dir})
write_basic_package_version_file(modcacheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/modcacheConfig.cmake
              ${PROJECT_BINARY_DIR}/modcacheConfigVersion.cmake DESTINATION ${modcache_config_dir})
