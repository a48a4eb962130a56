# SPDX-License-Identifier: Apache-2.0
# Defines the target NlohmannJson::NlohmannJson: headers only.
include(FindPackageHandleStandardArgs)
find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp)
mark_as_advanced(NlohmannJson_INCLUDE_DIR)
find_package_handle_standard_args(NlohmannJson REQUIRED_VARS NlohmannJson_INCLUDE_DIR)
if(NlohmannJson_FOUND AND NOT TARGET NlohmannJson::NlohmannJson)
  add_library(NlohmannJson::NlohmannJson INTERFACE IMPORTED)
  set_target_properties(NlohmannJson::NlohmannJson PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                              ${NlohmannJson_INCLUDE_DIR})
endif()
