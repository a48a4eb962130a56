# SPDX-License-Identifier: Apache-2.0
# Defines the imported targets LibTorch::LibTorch (torch_cpu and c10, no Python, no CUDA), for a library
# that somebody loads beside torch, and LibTorch::Host, for a program, with libtorch.so: that brings the
# CUDA kernels along, and AOTInductor packages ask for it. Also
# LibTorch_VERSION ("2.13.0+cpu"), LibTorch_MINOR_VERSION ("2.13") and LibTorch_LIBRARY_DIR.
#
# Not find_package(Torch): against a CUDA build of torch that one fails on a machine without the
# CUDA toolkit, none of which modcache needs.
#
# Where torch is looked for, first that applies:
#   -DLibTorch_ROOT=<root>: a folder with include and lib; /usr for a distribution's package
#   -DTorch_DIR=<folder of TorchConfig.cmake>, as for find_package(Torch)
#   the torch of -DPython_EXECUTABLE, of $VIRTUAL_ENV, of .venv in the source tree, of python3
#   CMAKE_PREFIX_PATH
include(FindPackageHandleStandardArgs)

function(modcache_torch_root_of_python python out)
  # Not `import torch`, which takes seconds.
  execute_process(
    COMMAND
      ${python} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE root
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

set(modcache_torch_root "")
if(LibTorch_ROOT)
  if(NOT IS_ABSOLUTE "${LibTorch_ROOT}")
    message(FATAL_ERROR "LibTorch_ROOT is '${LibTorch_ROOT}'; valid is an absolute path of the folder with "
                        "torch's include and lib.")
  endif()
  set(modcache_torch_root ${LibTorch_ROOT})
elseif(Torch_DIR)
  # share/cmake/Torch in torch's own folder, lib/<architecture>/cmake/Torch on Debian.
  foreach(up IN ITEMS ../../.. ../../../..)
    get_filename_component(folder ${Torch_DIR}/${up} ABSOLUTE)
    if(NOT modcache_torch_root AND EXISTS ${folder}/include/ATen/ATen.h)
      set(modcache_torch_root ${folder})
    endif()
  endforeach()
  if(NOT modcache_torch_root)
    get_filename_component(modcache_torch_root ${Torch_DIR}/../../.. ABSOLUTE) # and fails there
  endif()
endif()
if(NOT LibTorch_ROOT AND NOT Torch_DIR)
  find_program(MODCACHE_PYTHON3 python3)
  mark_as_advanced(MODCACHE_PYTHON3)
  foreach(python IN ITEMS "${Python_EXECUTABLE}" "$ENV{VIRTUAL_ENV}/bin/python3"
                          "${PROJECT_SOURCE_DIR}/.venv/bin/python3" "${MODCACHE_PYTHON3}")
    if(NOT modcache_torch_root AND EXISTS "${python}")
      modcache_torch_root_of_python(${python} modcache_torch_root)
    endif()
  endforeach()
endif()

# The environment may hold another torch than when this build folder was made.
if(NOT "${modcache_torch_root}" STREQUAL "${LibTorch_ROOT_DIR}")
  foreach(part IN ITEMS INCLUDE_DIR API_INCLUDE_DIR TORCH_CPU_LIBRARY C10_LIBRARY)
    unset(LibTorch_${part} CACHE)
  endforeach()
endif()
set(LibTorch_ROOT_DIR "${modcache_torch_root}" CACHE INTERNAL "Folder of torch's include and lib")

# Where the root is known, nothing else is looked at: headers of one torch and libraries of another do
# not go together.
set(modcache_only_there "")
if(LibTorch_ROOT_DIR)
  set(modcache_only_there NO_DEFAULT_PATH)
endif()
# Debian's packages have a folder for each architecture.
set(modcache_torch_lib ${LibTorch_ROOT_DIR}/lib ${LibTorch_ROOT_DIR}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ${LibTorch_ROOT_DIR}/include
          ${modcache_only_there})
find_path(LibTorch_API_INCLUDE_DIR torch/all.h
          HINTS ${LibTorch_ROOT_DIR}/include/torch/csrc/api/include
          PATH_SUFFIXES torch/csrc/api/include ${modcache_only_there})
find_library(LibTorch_TORCH_CPU_LIBRARY torch_cpu HINTS ${modcache_torch_lib} ${modcache_only_there})
find_library(LibTorch_C10_LIBRARY c10 HINTS ${modcache_torch_lib} ${modcache_only_there})
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_API_INCLUDE_DIR LibTorch_TORCH_CPU_LIBRARY
                 LibTorch_C10_LIBRARY)

# "2.13.0+cpu" from torch/version.py, "2.13.0" from a header where there is no Python.
foreach(file IN ITEMS ${LibTorch_ROOT_DIR}/version.py
             ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h
             ${LibTorch_API_INCLUDE_DIR}/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS ${file})
    file(STRINGS ${file} modcache_torch_version REGEX "[0-9]+\\.[0-9]+\\.[0-9]" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9A-Za-z.+]+" LibTorch_VERSION
                 "${modcache_torch_version}")
  endif()
endforeach()

find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_TORCH_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
                LibTorch_API_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "Give -DPython_EXECUTABLE=<a python that has torch>, -DTorch_DIR=<torch>/share/cmake/Torch or -DLibTorch_ROOT=/usr.")

if(LibTorch_FOUND)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" LibTorch_MINOR_VERSION "${LibTorch_VERSION}")
  get_filename_component(LibTorch_LIBRARY_DIR ${LibTorch_TORCH_CPU_LIBRARY} DIRECTORY)
  if(NOT TARGET LibTorch::LibTorch)
    foreach(part IN ITEMS C10 TORCH_CPU)
      add_library(LibTorch::${part} SHARED IMPORTED)
      set_target_properties(LibTorch::${part} PROPERTIES IMPORTED_LOCATION
                                                         ${LibTorch_${part}_LIBRARY})
    endforeach()
    add_library(LibTorch::LibTorch INTERFACE IMPORTED)
    set_target_properties(
      LibTorch::LibTorch
      PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_API_INCLUDE_DIR}"
                 INTERFACE_LINK_LIBRARIES "LibTorch::TORCH_CPU;LibTorch::C10")
    # A program calls no symbol of libtorch.so, so a linker that runs with --as-needed would drop it.
    add_library(LibTorch::TORCH SHARED IMPORTED)
    set_target_properties(LibTorch::TORCH PROPERTIES IMPORTED_LOCATION ${LibTorch_LIBRARY_DIR}/libtorch.so)
    add_library(LibTorch::Host INTERFACE IMPORTED)
    set_target_properties(
      LibTorch::Host PROPERTIES INTERFACE_LINK_LIBRARIES "LibTorch::TORCH;LibTorch::LibTorch"
                                INTERFACE_LINK_OPTIONS LINKER:--no-as-needed)
    # modcache's headers need C++20, and torch's from 2.14 on.
    target_compile_features(LibTorch::LibTorch INTERFACE cxx_std_20)
  endif()
endif()
