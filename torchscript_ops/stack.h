// SPDX-License-Identifier: Apache-2.0
//
// The stack of a boxed operator: it holds the arguments, and then what the operator returns.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <utility>

namespace modcache::ops {

using c10::Stack;

// The `count` values on top, the deepest first. They go with drop() and replace().
inline at::ArrayRef<at::IValue> last(const Stack& stack, std::size_t count) {
  return at::ArrayRef<at::IValue>(stack).slice(stack.size() - count, count);
}

inline void drop(Stack& stack, std::size_t count) {
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
}

// Puts what the operator returns in the place of its arguments, `count` values on top.
template <typename Result>
void replace(Stack& stack, std::size_t count, Result&& result) {
  drop(stack, count);
  stack.emplace_back(std::forward<Result>(result));
}

}  // namespace modcache::ops
