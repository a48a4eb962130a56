// SPDX-License-Identifier: Apache-2.0
//
// What the cache needs to know about a call's input: the signature that is kept with the entry,
// the non-tensor arguments that are part of the address, and what forbids caching.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace modcache::tensor {

struct InputSummary {
  // Structure, dtypes and shapes of the tensors: "(float32[1,64],int64[1,64])". Per row, without
  // their first dimension.
  std::string signature;
  // Non-tensor values, their places and what they are nested in, unambiguous; empty when there
  // are none.
  std::string arguments;
  // All of them, in the order of the signature; those that cannot be stored are left out.
  std::vector<at::Tensor> tensors;
  // Of the first tensor.
  std::optional<at::Device> device;
  bool any_requires_grad = false;
  // One bit per tensor, in order, hashed together.
  std::uint64_t requires_grad_pattern = 0;
  // Set when the input holds something that no address can stand for: "a tensor subclass", ...
  std::string why_not_cacheable;
};

enum class Per { kCall, kRow };
InputSummary summarize_input(const at::IValue& input, Per per = Per::kCall);

// An input apart from its tensors, as an exported program has it: the signature with a mark in
// place of each tensor, and the arguments.
struct InputForm {
  std::string signature;
  std::string arguments;
  std::string why_not_cacheable;
};
InputForm form_of_input(const at::IValue& input);
// What summarize_input() says of the input that `form` and `tensors` make. Throws when the form has
// another number of tensors.
InputSummary summarize_form(const InputForm& form, const std::vector<at::Tensor>& tensors, Per per);

// The first size that all tensors of `input` share. Throws (the caller's mistake) when it is not
// `rows`, saying which tensor has another, or when there is no tensor.
void check_rows(const at::IValue& input, std::int64_t rows);

// Where the first tensor of `input` lies; the CPU where there is none.
at::Device device_of(const at::IValue& input);

// "float32", as Python shows a dtype without its "torch.". Part of content keys (FORMAT.md), so no
// name ever changes.
std::string_view dtype_name(at::ScalarType type);

// Autocast state and default dtype of this thread, as far as they are not the defaults; part of
// an entry's address since they change what a module computes.
std::string arithmetic_state();

}  // namespace modcache::tensor
