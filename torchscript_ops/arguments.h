// SPDX-License-Identifier: Apache-2.0
//
// Checks of what callers pass, before anything runs. Each throws torch's own error, which Python
// shows as RuntimeError or ValueError, and which says what was given, what is valid and how to
// fix it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>

#include "base/status.h"
#include "cache/cache.h"
#include "module/batch_keys.h"

namespace modcache::ops {

// Keys and scopes are valid UTF-8; a key, and a scope that names entries, is not empty.
void check_key(const char* op, const std::string& key);
void check_scope(const char* op, const std::string& scope);

// One key per row: a list of texts, or a tensor of ids.
module::BatchKeys checked_keys(const char* op, const at::IValue& keys);

// Ids as the library reads them: on the CPU, one after the other.
at::Tensor checked_ids(const char* op, const at::Tensor& ids);

// Throws the status's message; kInvalidArgument is the caller's mistake.
void check_ok(const char* op, const Status& status);

cache::Cache::Tier parse_tier(const std::string& tier);

}  // namespace modcache::ops
