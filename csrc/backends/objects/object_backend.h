// SPDX-License-Identifier: Apache-2.0
//
// make_object_backend(): values on servers of plain HTTP, and on S3.
#pragma once

#include <memory>

#include "base/result.h"
#include "remote/backend.h"
#include "remote/engine_library.h"

namespace modcache::backends {

// kInvalidArgument: the options are wrong.
Result<std::unique_ptr<remote::Backend>> make_object_backend(const remote::BackendOptions& options);

}  // namespace modcache::backends
