// SPDX-License-Identifier: Apache-2.0
//
// Installation: the native libraries that belong to this program, and the torch that each is for.
// It looks where `cmake --install`, pip and a build put the program. Reads files, but loads no
// library.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace modcache::command_line {

struct InstalledLibrary {
  std::string path;
  std::string torch;  // "2.13"; empty: the build wrote no facts beside it
};

struct Installation {
  std::vector<InstalledLibrary> libraries;  // by version of torch; empty: nothing is installed
  std::string torch;                 // "2.13", the torch beside the Python package; empty: none
  std::string python;                // "3.11", the owner of these packages; empty: not known
  std::vector<std::string> pythons;  // "3.11": the package has its compiled part for these
  std::vector<std::string> tried;    // the places that were searched for libraries
};

// Returns the library at `path` with the facts that lie beside it; kNotFound when it does not
// exist.
Result<InstalledLibrary> library_at(const std::string& path);

// Finds the installation of this program; kIoError when the program cannot find its own path.
Result<Installation> find_installation();
// Finds the installation of a program at this path.
Installation installation_beside(const std::string& program);

// Returns the folders beside a program at this path in which a libmodcache_remote.so lies, the
// engines of the remote tier. They are in the Python package, in a prefix, or in a build.
std::vector<std::string> engine_folders_beside(const std::string& program);
// Does the same for this program; none where it cannot find its own path.
std::vector<std::string> engine_folders();

// Returns the library for `torch` ("2.13" or "2.13.0"), or, when that is empty, for the torch that
// is installed. kNotFound when there is none; the message says what is there and how to choose.
// kInvalidArgument when `torch` is not a version.
Result<InstalledLibrary> library_for(const Installation& installation, const std::string& torch);

// Returns the folder for Triton's --cache-directory. kNotFound: the cache for Triton does not lie
// where it would be installed with the library.
Result<std::string> triton_caches_of(const Installation& installation);

}  // namespace modcache::command_line
