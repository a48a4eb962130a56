// SPDX-License-Identifier: Apache-2.0
//
// Installation: which native libraries belong to this program, and for which torch each is. They
// are looked for where `cmake --install`, pip and a build put the program. Reads files, loads
// nothing.
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
  std::vector<InstalledLibrary> libraries;  // by version of torch; none: nothing is installed
  std::string torch;   // "2.13", of the torch beside the Python package; empty: there is none
  std::string python;  // "3.11", whose packages these are; empty: the folder's name does not say
  std::vector<std::string> pythons;  // "3.11": the package has its compiled part for these
  std::vector<std::string> tried;    // where libraries were looked for
};

// The library at `path`, with the facts that lie beside it. kNotFound: it is not there.
Result<InstalledLibrary> library_at(const std::string& path);

// kIoError: the program does not know where it is.
Result<Installation> find_installation();
// The same, of a program at this path.
Installation installation_beside(const std::string& program);

// The library for `torch` ("2.13" or "2.13.0"); empty: for the torch that is there. kNotFound says
// what is there and how to choose; kInvalidArgument: `torch` is no version.
Result<InstalledLibrary> library_for(const Installation& installation, const std::string& torch);

}  // namespace modcache::command_line
