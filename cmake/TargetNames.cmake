# SPDX-License-Identifier: Apache-2.0
# modcache_check_target_names(): no target is named as the file of another target is. Ninja lets one
# build either by that name, and takes whichever it saw first.
function(modcache_collect_targets folder out)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  get_directory_property(subfolders DIRECTORY ${folder} SUBDIRECTORIES)
  foreach(subfolder IN LISTS subfolders)
    modcache_collect_targets(${subfolder} more)
    list(APPEND targets ${more})
  endforeach()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

function(modcache_check_target_names)
  modcache_collect_targets(${PROJECT_SOURCE_DIR} targets)
  foreach(target IN LISTS targets)
    get_target_property(file_name ${target} OUTPUT_NAME)
    if(file_name AND file_name IN_LIST targets AND NOT file_name STREQUAL target)
      message(FATAL_ERROR "The target '${target}' makes a file named '${file_name}', which is a target too: "
                          "`cmake --build . --target ${file_name}` would mean either.")
    endif()
  endforeach()
endfunction()
