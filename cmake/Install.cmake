# SPDX-License-Identifier: Apache-2.0
# `cmake --install` lays this down for C++ hosts. The Python package holds the same below its own
# folder, with one library for each minor version of torch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(MODCACHE_PYTHON_PACKAGE)
  set(modcache_lib modcache/lib)
  set(modcache_library_folder modcache/lib/torch-${LibTorch_MINOR_VERSION})
  set(modcache_include modcache/include)
  # share/cmake is a prefix for CMAKE_PREFIX_PATH, like torch.utils.cmake_prefix_path.
  set(modcache_config_folder modcache/share/cmake/modcache)
  set(modcache_program_folder ${SKBUILD_SCRIPTS_DIR}) # the commands of the environment
  # site-packages/torch beside site-packages/modcache
  set(modcache_torch torch)
  set(modcache_built_against "")
  set(modcache_torch_libraries "$ORIGIN/../../../torch/lib")
  install(TARGETS ${MODCACHE_COMPILED_PARTS} LIBRARY DESTINATION ${modcache_lib})
else()
  set(modcache_lib ${CMAKE_INSTALL_LIBDIR})
  set(modcache_library_folder ${CMAKE_INSTALL_LIBDIR})
  set(modcache_include ${CMAKE_INSTALL_INCLUDEDIR})
  set(modcache_config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/modcache)
  set(modcache_program_folder ${CMAKE_INSTALL_BINDIR})
  # The torch it was built against: a host may load libmodcache.so before torch itself.
  set(modcache_torch "")
  set(modcache_built_against "${LibTorch_ROOT_DIR}")
  set(modcache_torch_libraries "${LibTorch_LIBRARY_DIR}")
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()

set_target_properties(modcache_library PROPERTIES INSTALL_RPATH "${modcache_torch_libraries}")
# The component is what a wheel takes of a build against one more torch.
install(TARGETS modcache_library LIBRARY DESTINATION ${modcache_library_folder} COMPONENT library)
install(FILES ${PROJECT_BINARY_DIR}/libmodcache.json DESTINATION ${modcache_library_folder}
        COMPONENT library)
install(TARGETS modcache_command RUNTIME DESTINATION ${modcache_program_folder})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/torchscript_ops/include/modcache
        DESTINATION ${modcache_include})

configure_package_config_file(
  cmake/modcacheConfig.cmake.in modcacheConfig.cmake INSTALL_DESTINATION ${modcache_config_folder}
  PATH_VARS modcache_lib modcache_include modcache_torch)
write_basic_package_version_file(modcacheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/modcacheConfig.cmake
              ${PROJECT_BINARY_DIR}/modcacheConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake
        DESTINATION ${modcache_config_folder})
