// SPDX-License-Identifier: Apache-2.0
//
// make_redis_backend(): values on Redis and Valkey, one server, one with replicas, or a cluster.
#pragma once

#include <memory>

#include "base/result.h"
#include "remote/backend.h"
#include "remote/engine_library.h"

namespace modcache::backends {

// Connects to nothing yet. kInvalidArgument: the options are wrong, or a certificate cannot be
// read.
Result<std::unique_ptr<remote::Backend>> make_redis_backend(const remote::BackendOptions& options);

}  // namespace modcache::backends
