// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "registration.h"
#include "tensor/content_key.h"
#include "tensor/row_padding.h"
#include "tensor/tree.h"

namespace modcache::ops {
namespace {

c10::List<std::string> list_of(const std::vector<std::string>& texts) {
  return c10::List<std::string>(c10::ArrayRef<std::string>(texts));
}

template <typename Keys>
Keys value_or_throw(const char* op, Result<Keys> keys) {
  check_ok(op, keys.status());
  return std::move(keys).value();
}

void content_key(const c10::OperatorHandle&, Stack* stack) {
  constexpr const char* kOp = "cache::content_key";
  std::string key = value_or_throw(kOp, tensor::content_key(last(*stack, 1)[0]));
  replace(*stack, 1, std::move(key));
}

// The size that a batch was padded to, which lengths do not say: every tensor with a dimension
// after the rows has it there.
std::int64_t padded_size_of(const char* op, const std::vector<at::Tensor>& tensors) {
  std::optional<std::int64_t> found;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() < 2) continue;
    TORCH_CHECK_VALUE(!found.has_value() || *found == tensor.size(1), op,
                      ": the size that the batch was padded to cannot be told, since the second "
                      "dimensions of the input have the sizes ",
                      *found, " and ", tensor.size(1), "; give a mask, [rows, longest]");
    found = tensor.size(1);
  }
  TORCH_CHECK_VALUE(found.has_value(), op,
                    ": lengths are for rows that were padded, but no tensor of the input has a "
                    "dimension after the rows");
  return *found;
}

std::vector<at::Tensor> tensors_among(c10::ArrayRef<at::IValue> leaves) {
  std::vector<at::Tensor> found;
  for (const at::IValue& leaf : leaves) {
    if (leaf.isTensor()) found.push_back(leaf.toTensor());
  }
  return found;
}

// `tensors`: returns those of the input; called where lengths are given.
template <typename Tensors>
std::optional<tensor::RowPadding> padding_of(const char* op, const at::IValue& mask,
                                             const at::IValue& lengths, const Tensors& tensors) {
  TORCH_CHECK_VALUE(mask.isNone() || lengths.isNone(), op,
                    ": mask and lengths say the same; give one of them");
  if (!mask.isNone()) return tensor::RowPadding::of_mask(mask.toTensor(), 0);
  if (lengths.isNone()) return std::nullopt;
  return tensor::RowPadding::of_lengths(lengths.toTensor(), padded_size_of(op, tensors()), 0);
}

template <typename Input>
c10::List<std::string> keys_of_rows(const char* op, const Input& input,
                                    const std::optional<tensor::RowPadding>& padding) {
  const tensor::RowPadding* const given = padding.has_value() ? &*padding : nullptr;
  return list_of(value_or_throw(op, tensor::content_keys(input, given)));
}

void content_keys(const c10::OperatorHandle&, Stack* stack) {
  constexpr const char* kOp = "cache::content_keys";
  const auto arguments = last(*stack, 3);
  const at::IValue& input = arguments[0];
  const auto padding =
      padding_of(kOp, arguments[1], arguments[2], [&] { return tensor::flatten(input).tensors; });
  replace(*stack, 3, keys_of_rows(kOp, input, padding));
}

// An input that Python took apart: one key for all of it, or one per row.
void content_keys_of_parts(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 5);
  const tensor::TakenApart parts{arguments[0].toStringRef(), arguments[1].toListRef()};
  if (!arguments[2].toBool()) {
    const std::string key = value_or_throw("content_key", tensor::content_key(parts));
    replace(*stack, 5, list_of({key}));
    return;
  }
  constexpr const char* kOp = "content_keys";
  const auto padding =
      padding_of(kOp, arguments[3], arguments[4], [&] { return tensors_among(parts.leaves); });
  replace(*stack, 5, keys_of_rows(kOp, parts, padding));
}

}  // namespace

void register_content_keys(torch::Library& m) {
  define(m, "content_key(Any input) -> str", boxed<&content_key>());
  define(m, "content_keys(Any input, *, Tensor? mask=None, Tensor? lengths=None) -> str[]",
         boxed<&content_keys>());
  define(m,
         "_content_keys(str structure, Any[] leaves, bool are_rows, Tensor? mask=None, Tensor? "
         "lengths=None) -> str[]",
         boxed<&content_keys_of_parts>());
}

}  // namespace modcache::ops
