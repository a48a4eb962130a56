// SPDX-License-Identifier: Apache-2.0
#include "remote/engine_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace modcache::remote {
namespace {

constexpr const char* kFileName = "libmodcache_remote.so";

// The folder of the library that this code is in; empty where the system cannot tell.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&open_engine_library), &info) == 0) return {};
  const std::string path = info.dli_fname != nullptr ? info.dli_fname : "";
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

std::vector<std::string> candidates(const std::vector<std::string>& folders) {
  const char* const given = std::getenv("MODCACHE_REMOTE_LIBRARY");
  if (given != nullptr && given[0] != '\0') return {given};
  std::vector<std::string> paths;
  const std::string folder = own_folder();
  if (!folder.empty()) {
    // A program lies in bin/ beside lib/; a wheel has a library for each torch in a folder below.
    for (const char* where : {"/", "/../", "/../lib/", "/../../"}) {
      paths.push_back(folder + where + kFileName);
    }
  }
  for (const std::string& other : folders) paths.push_back(other + "/" + kFileName);
  paths.emplace_back(kFileName);
  return paths;
}

// The reason of dlopen() that helps most: a library that is there and lacks another one says which.
std::string advice_on(const std::string& reason) {
  if (reason.find("libssl") != std::string::npos || reason.find("libcrypto") != std::string::npos) {
    return reason + "; it needs the system's OpenSSL 3 (on Debian: apt-get install libssl3)";
  }
  return reason;
}

}  // namespace

Result<BackendFactory> open_engine_library(const std::vector<std::string>& folders) {
  std::string reason;
  for (const std::string& path : candidates(folders)) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const error = dlerror();
      const std::string why = error != nullptr ? error : "";
      const bool is_absent =
          why.find(std::string(kFileName) + ": cannot open shared object") != std::string::npos;
      if (reason.empty() || !is_absent) reason = why;
      continue;
    }
    auto* const version =
        reinterpret_cast<InterfaceVersion>(dlsym(library, kInterfaceVersionSymbol));
    auto* const make = reinterpret_cast<MakeBackend>(dlsym(library, kMakeBackendSymbol));
    if (version == nullptr || make == nullptr || version() != kInterfaceVersion) {
      return Status::io_error("'" + path + "' is of another version of modcache");
    }
    return BackendFactory(
        [make](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
          std::string error;
          Backend* const backend = make(options, error);
          if (backend == nullptr) return Status::invalid_argument(error);
          return std::unique_ptr<Backend>(backend);
        });
  }
  return Status::io_error("the library for servers, " + std::string(kFileName) +
                          ", cannot be loaded: " + advice_on(reason));
}

}  // namespace modcache::remote
