// SPDX-License-Identifier: Apache-2.0
//
// Checks of what callers pass, before anything runs. Each throws torch's own error, which Python
// shows as RuntimeError or ValueError, and which says what was given, what is valid and how to
// fix it.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "cache/cache.h"
#include "module/call/call_keys.h"
#include "module/call/declared.h"
#include "tensor/row_padding.h"

namespace modcache::ops {

// Keys and scopes are valid UTF-8; a key, and a scope that names entries, is not empty.
void check_key(const char* op, const std::string& key);
void check_scope(const char* op, const std::string& scope);

// One key per row: a list of texts, or a tensor of ids.
module::CallKeys checked_keys(const char* op, const at::IValue& keys);

// One key per row as methods take them, one of the two: torch reads a list of which it knows that
// it holds texts five times as fast as one of anything.
module::CallKeys checked_keys(const char* op, const std::optional<c10::List<std::string>>& texts,
                              const std::optional<at::Tensor>& ids);

// Rows that were padded to one length, as callers describe them: a mask [rows, longest], or lengths
// [rows] and the longest; neither where rows are whole. Mode `off` looks at neither.
struct GivenPadding {
  const std::optional<at::Tensor>& mask;
  const std::optional<at::Tensor>& lengths;
  std::int64_t longest = 0;
  double value = 0;
};
std::optional<tensor::RowPadding> checked_padding(const char* op, std::size_t rows,
                                                  const GivenPadding& given);

// Ids as the library reads them: on the CPU, one after the other.
at::Tensor checked_ids(const char* op, const at::Tensor& ids);

// Throws the status's message; kInvalidArgument is the caller's mistake.
void check_ok(const char* op, const Status& status);

cache::Options given_options(const c10::Dict<std::string, std::string>& options);

cache::Cache::Tier parse_tier(const std::string& tier);

}  // namespace modcache::ops
