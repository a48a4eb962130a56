# SPDX-License-Identifier: Apache-2.0
# Defines the target Cli11::Cli11: headers only.
include(FindPackageHandleStandardArgs)
find_path(Cli11_INCLUDE_DIR CLI/CLI.hpp)
mark_as_advanced(Cli11_INCLUDE_DIR)
find_package_handle_standard_args(Cli11 REQUIRED_VARS Cli11_INCLUDE_DIR)
if(Cli11_FOUND AND NOT TARGET Cli11::Cli11)
  add_library(Cli11::Cli11 INTERFACE IMPORTED)
  set_target_properties(Cli11::Cli11 PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${Cli11_INCLUDE_DIR})
endif()
