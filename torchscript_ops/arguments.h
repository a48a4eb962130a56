// SPDX-License-Identifier: Apache-2.0
//
// Checks of what callers pass, before anything runs. Each throws torch's own error, which Python
// shows as RuntimeError or ValueError, and which says what was given, what is valid and how to
// fix it.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "cache/cache.h"
#include "module/call/batch_keys.h"
#include "tensor/row_padding.h"

namespace modcache::ops {

// Keys and scopes are valid UTF-8; a key, and a scope that names entries, is not empty.
void check_key(const char* op, const std::string& key);
void check_scope(const char* op, const std::string& scope);

// One key per row: a list of texts, or a tensor of ids.
module::BatchKeys checked_keys(const char* op, const at::IValue& keys);

// The optional of this torch, for arguments of methods.
template <typename Value>
using Maybe = decltype(std::declval<at::IValue>().toOptional<Value>());

// The same in the optional of this torch, which old versions have of their own.
template <typename Value>
Maybe<Value> maybe(std::optional<Value> value) {
  if (!value.has_value()) return {};
  return *std::move(value);  // NOLINT(bugprone-optional-value-conversion)
}

// One key per row as methods take them, one of the two: torch reads a list of which it knows that
// it holds texts five times as fast as one of anything.
module::BatchKeys checked_keys(const char* op, const Maybe<c10::List<std::string>>& texts,
                               const Maybe<at::Tensor>& ids);

// Rows that were padded to one length, as callers describe them: a mask [rows, longest], or lengths
// [rows] and the longest; neither where rows are whole. Mode `off` looks at neither.
struct GivenPadding {
  const Maybe<at::Tensor>& mask;
  const Maybe<at::Tensor>& lengths;
  std::int64_t longest = 0;
  double value = 0;
};
std::optional<tensor::RowPadding> checked_padding(const char* op, std::size_t rows,
                                                  const GivenPadding& given);

// Ids as the library reads them: on the CPU, one after the other.
at::Tensor checked_ids(const char* op, const at::Tensor& ids);

// Throws the status's message; kInvalidArgument is the caller's mistake.
void check_ok(const char* op, const Status& status);

cache::Cache::Tier parse_tier(const std::string& tier);

}  // namespace modcache::ops
