// SPDX-License-Identifier: Apache-2.0
//
// The fast path for plain hits: without the parts of a Call that a miss needs, and for Python in
// one crossing to the library, each of which costs a microsecond. It is one question, which a plain
// hit answers with its value: one tensor was stored for each key, and nothing has to run. Any other
// call (a miss, a structured value, a mode that compares, a module in training) gets no answer, and
// the question changes nothing: the caller then goes through Call or RowsCall. But where the call
// bypasses the cache, that is the answer.
//
// scripted/ asks it for its modules, and Python for eager ones. Thread-safe; usable in a forked
// child.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "cache/mode.h"
#include "module/call/batch_keys.h"
#include "tensor/input.h"

namespace modcache::module {

// Returns whether the mode allows returning a stored value without running anything.
constexpr bool fast_path_is_open(cache::Mode mode) {
  return cache::may_read(mode) && !cache::always_runs(mode);
}

struct FastCall {
  const std::string& scope;
  const std::string& method;
  const at::IValue& input;
  const std::string& key;           // of the whole input; not used if `rows` is set
  const BatchKeys* rows = nullptr;  // one key for each row
  // False: a single key is looked for in memory alone. A caller who goes on to a Call after a miss
  // would look on disk twice.
  bool looks_on_disk = true;

  tensor::Per per() const { return rows == nullptr ? tensor::Per::kCall : tensor::Per::kRow; }
};

// Returns the summary of the input; nothing when it requires grad, cannot be cached or has not, in
// each of its tensors, one row for each key.
std::optional<tensor::InputSummary> plain_input(const FastCall& call);

struct FastAnswer {
  std::optional<at::Tensor> value;  // nothing: the ordinary way of a call has to handle it
  // The call bypasses the cache (Session::bypasses): it was counted, and is to be run uncached.
  bool is_bypassed = false;
};

// Returns what the lookup of Call or RowsCall would find for a module of which nothing requires
// grad. `input` is the result of plain_input(), `mode` that of the
// call. REQUIRES: fast_path_is_open(mode).
FastAnswer find_on_fast_path(const FastCall& call, tensor::InputSummary input, cache::Mode mode);

}  // namespace modcache::module
