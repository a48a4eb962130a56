// SPDX-License-Identifier: Apache-2.0
//
// The fast path to the memory tier, for Python, where each operator costs a microsecond. It is one
// question, which a plain hit answers with its value. Any other call (a miss, an entry on disk
// only, a structured value, a mode that compares, a module in training) gets no answer, and the
// question changes nothing: the caller then goes through Call.
//
// eager/ and scripted/ ask it for their modules. Thread-safe; usable in a forked child.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "tensor/input.h"

namespace modcache::module {

// Returns whether the mode allows returning a stored value without running anything.
bool fast_path_is_open();

struct FastCall {
  const std::string& scope;
  const std::string& method;
  const at::Tensor& input;
  const std::string& key;
};

// Returns the summary of the input; nothing when it requires grad or cannot be cached.
std::optional<tensor::InputSummary> plain_input(const at::Tensor& input);

// Returns what Call::lookup() would find in memory for a module of which nothing requires grad.
// `input` is the result of plain_input(). REQUIRES: fast_path_is_open().
std::optional<at::Tensor> find_on_fast_path(const FastCall& call,
                                            const tensor::InputSummary& input);

}  // namespace modcache::module
