// SPDX-License-Identifier: Apache-2.0
//
// EngineLibrary: libmodcache_remote.so, in which the backends are. It is opened when a process
// first uses a remote tier, so that nobody else needs what it links to (OpenSSL).
//
// It is looked for beside this library, in the folder above it, in the folders that the caller
// names, and where the system looks for libraries; MODCACHE_REMOTE_LIBRARY names another file. It
// stays open until the process ends. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "remote/address.h"
#include "remote/backend.h"

namespace modcache::remote {

struct BackendOptions {
  Address address;                // with its credentials
  std::int64_t timeout_ms = 500;  // to connect, and for each answer
};

using BackendFactory = std::function<Result<std::unique_ptr<Backend>>(const BackendOptions&)>;

// The library's function under kMakeBackendSymbol makes a backend, which does not connect yet.
// Null, with `error` set, where the options are wrong. The caller owns the backend.
using MakeBackend = Backend* (*)(const BackendOptions& options, std::string& error);
inline constexpr const char* kMakeBackendSymbol = "modcache_remote_make_backend";
// The library and its user have to be of one build: both have this number, which each change of
// Backend, BackendOptions or Address raises.
using InterfaceVersion = int (*)();
inline constexpr const char* kInterfaceVersionSymbol = "modcache_remote_interface_version";
inline constexpr int kInterfaceVersion = 4;

// Opens the library, which may also lie in one of these folders. kIoError names what is missing and
// how to get it.
Result<BackendFactory> open_engine_library(const std::vector<std::string>& folders = {});

}  // namespace modcache::remote
