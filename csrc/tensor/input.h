// SPDX-License-Identifier: Apache-2.0
//
// Summarizes a call's input for the cache: the signature that is stored with the entry, the
// non-tensor arguments, which are part of the address, and the reason why a call cannot be cached.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/row_padding.h"

namespace modcache::tensor {

// Which of some tensors, in their order, require grad.
struct RequiringGrad {
  std::int64_t count = 0;
  std::uint64_t hash = 1;  // of one bit per tensor

  void add(const at::Tensor& tensor) {
    const bool requires_grad = tensor.defined() && tensor.requires_grad();
    count += requires_grad ? 1 : 0;
    hash = hash * 0x9e3779b97f4a7c15ULL + (requires_grad ? 2 : 1);
  }
  // The hash; 0 when no tensor requires grad.
  std::uint64_t pattern() const { return count == 0 ? 0 : hash == 0 ? 1 : hash; }
};

struct InputSummary {
  // Structure, dtypes and shapes of the tensors: "(float32[1,64],int64[1,64])". With Per::kRow the
  // shapes lack the first dimension. kLength stands for the size of a padded dimension, which each
  // row has its own of.
  static constexpr char kLength = '~';
  std::string signature;
  // The non-tensor values, their places and the containers around them, unambiguously; empty when
  // there are none.
  std::string arguments;
  // The tensors in the order of the signature, without those that cannot be stored.
  std::vector<at::Tensor> tensors;
  // Their padded dimensions (row_padding.h); empty: the rows are not padded.
  std::vector<DimSet> padded_dims;
  // The device of the first tensor.
  std::optional<at::Device> device;
  RequiringGrad requiring_grad;
  // The sizes of its lists that hold no tensors, such as one text for each row.
  std::vector<std::int64_t> list_sizes;
  // Set when the input holds something that an address cannot cover: "a tensor subclass", ...
  std::string why_not_cacheable;
};

enum class Per { kCall, kRow };
// `padding`: null, or that of the input's rows.
InputSummary summarize_input(const at::IValue& input, Per per = Per::kCall,
                             const RowPadding* padding = nullptr);
// The same, into an empty summary.
void summarize_input(InputSummary& summary, const at::IValue& input, Per per,
                     const RowPadding* padding);

// Returns the signature of a row of this length.
std::string signature_of_length(const std::string& signature, std::int64_t length);

// The input of a call without its tensors, which is what an exported program records: the signature
// with a mark in place of each tensor, and the arguments.
struct InputForm {
  std::string signature;
  std::string arguments;
  std::string why_not_cacheable;
};
InputForm form_of_input(const at::IValue& input);
// Returns what summarize_input() returns for the input that `form` and `tensors` make. Throws when
// their number of tensors differs.
InputSummary summarize_form(const InputForm& form, const std::vector<at::Tensor>& tensors, Per per,
                            const RowPadding* padding = nullptr);
// Returns `arguments` of a form as a summary of padded rows has them.
std::string arguments_of_padded(const std::string& arguments, TruePart part);

// Returns whether each of the tensors has this many rows.
bool have_rows(const std::vector<at::Tensor>& tensors, std::int64_t rows);

// Throws (the caller's mistake) when a tensor's first size is not `rows`, naming that tensor's
// shape, or when the input has no tensor.
void check_rows(const at::IValue& input, std::int64_t rows);

// The device of the first tensor of `input`; the CPU when there is none.
at::Device device_of(const at::IValue& input);

// The name that Python shows without its "torch.": "float32". Content keys contain it (FORMAT.md),
// so no name ever changes.
std::string_view dtype_name(at::ScalarType type);

// The autocast state and default dtype of this thread where they are not the defaults. They change
// the result of a module, so they are part of an entry's address.
std::string arithmetic_state();
// Returns whether such a state computes in fewer bits than float32 has.
bool is_of_few_bits(const std::string& arithmetic_state);

}  // namespace modcache::tensor
