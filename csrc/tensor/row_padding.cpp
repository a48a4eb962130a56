// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_padding.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

bool has(DimSet dims, std::int64_t dimension) {
  return dimension < 64 && ((dims >> dimension) & 1) != 0;
}

// Returns whether the ones of a row are all in this part of it.
bool has_ones_in(TruePart part, const bool* mask, std::int64_t size, std::int64_t length) {
  const bool* const first = mask + RowPadding::first_of(part, size, length);
  return std::all_of(first, first + length, [](bool is_true) { return is_true; });
}

// Returns what a tensor is that was given as a mask or as lengths.
std::string described(const at::Tensor& given) {
  if (const char* why = why_not_storable(given)) return c10::str("one that is ", why);
  return c10::str(given.scalar_type(), given.sizes());
}

}  // namespace

RowPadding RowPadding::of_mask(const at::Tensor& mask, double value) {
  TORCH_CHECK_VALUE(why_not_storable(mask) == nullptr && mask.dim() == 2,
                    "modcache: a mask is a dense tensor [rows, longest], but got ",
                    described(mask));
  OrdinaryTensors ordinary;
  const at::Tensor ones = as_operable(mask.detach()).to(at::kCPU).ne(0).contiguous();
  RowPadding padding;
  padding.longest = ones.size(1);
  padding.value = value;
  padding.mask = mask;
  const auto* row = reinterpret_cast<const bool*>(const_bytes(ones));
  bool are_first = true;
  bool are_last = true;
  for (std::int64_t i = 0; i < ones.size(0); ++i, row += padding.longest) {
    const std::int64_t length = std::count(row, row + padding.longest, true);
    padding.lengths.push_back(length);
    const bool is_first = has_ones_in(TruePart::kFirst, row, padding.longest, length);
    const bool is_last = has_ones_in(TruePart::kLast, row, padding.longest, length);
    if (!is_first && !is_last) padding.why_not = "padded with holes in its mask";
    are_first = are_first && is_first;
    are_last = are_last && is_last;
  }
  if (!are_first && are_last) padding.true_part = TruePart::kLast;
  if (!are_first && !are_last && padding.why_not.empty()) {
    padding.why_not = "padded on the left in some rows and on the right in others";
  }
  return padding;
}

RowPadding RowPadding::of_lengths(const at::Tensor& lengths, std::int64_t longest, double value) {
  TORCH_CHECK_VALUE(why_not_storable(lengths) == nullptr && lengths.dim() == 1 &&
                        c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
                    "modcache: lengths are a tensor of integers [rows], but got ",
                    described(lengths));
  OrdinaryTensors ordinary;
  const at::Tensor numbers = lengths.detach().to(at::kCPU).to(at::kLong).contiguous();
  RowPadding padding;
  padding.longest = longest;
  padding.value = value;
  const auto* first = reinterpret_cast<const std::int64_t*>(const_bytes(numbers));
  padding.lengths.assign(first, first + numbers.numel());
  for (std::size_t i = 0; i < padding.lengths.size(); ++i) {
    TORCH_CHECK_VALUE(padding.lengths[i] >= 0 && padding.lengths[i] <= longest, "modcache: length ",
                      i, " is ", padding.lengths[i], ", but must be from 0 to ", longest,
                      ", the size that the batch was padded to");
  }
  return padding;
}

bool is_ambiguous(const at::Tensor& batch, std::int64_t longest) {
  const at::IntArrayRef sizes = batch.sizes();
  return batch.dim() > 2 && std::find(sizes.begin() + 2, sizes.end(), longest) != sizes.end();
}

at::Tensor cut_to_length(const at::Tensor& row, DimSet dims, std::int64_t length, TruePart part) {
  at::Tensor cut = row;
  for (std::int64_t d = 0; d < row.dim(); ++d) {
    if (!has(dims, d)) continue;
    cut = cut.narrow(d, RowPadding::first_of(part, row.size(d), length), length);
  }
  return cut;
}

at::Tensor one_row_of_length(const at::Tensor& tensor, std::int64_t row, std::int64_t longest,
                             std::int64_t length, TruePart part) {
  const at::Tensor one = tensor.narrow(0, row, 1);
  if (!is_padded(tensor, longest) || length == longest) return one;
  if (length <= longest) {
    return one.narrow(1, RowPadding::first_of(part, longest, length), length);
  }
  // The last dimension comes first, and of each the beginning before the end.
  std::vector<std::int64_t> pad(static_cast<std::size_t>(2 * (one.dim() - 1)), 0);
  pad[pad.size() - (part == TruePart::kFirst ? 1 : 2)] = length - longest;
  return at::constant_pad_nd(one, pad);
}

at::IValue one_row_of_length(const at::IValue& input, std::int64_t row, const RowPadding& padding,
                             std::int64_t length, std::uint64_t kept) {
  const std::int64_t longest = padding.longest;
  unsigned padded = 0;
  return with_tensors(input, [&](const at::Tensor& tensor) {
    const bool is_kept = is_padded(tensor, longest) && ((kept >> padded++) & 1) != 0;
    return one_row_of_length(tensor, row, longest, is_kept ? longest : length, padding.true_part);
  });
}

at::Tensor pad_value_of(at::ScalarType dtype, double value) {
  const at::Tensor zero = at::zeros({}, at::TensorOptions().dtype(dtype));
  if (as_operable(zero).scalar_type() != dtype) return zero;
  double fitting = value;
  if (dtype == at::kBool) fitting = value != 0 ? 1 : 0;
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    // Powers of two, which a double has exactly.
    const int bits = 8 * static_cast<int>(zero.element_size()) - (dtype == at::kByte ? 0 : 1);
    const double end = std::ldexp(1.0, bits);
    const double most = bits < 53 ? end - 1 : end - 1024;
    const double least = dtype == at::kByte ? 0 : -end;
    fitting = std::isnan(value) ? 0 : std::min(std::max(std::trunc(value), least), most);
  }
  return at::scalar_tensor(fitting, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

at::Tensor with_padding(const at::Tensor& batch, DimSet dims, const RowPadding& padding,
                        const std::vector<std::int64_t>& rows) {
  const auto length_of = [&](std::size_t k) {
    return padding.lengths[static_cast<std::size_t>(rows[k])];
  };
  std::vector<std::size_t> shorter;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (length_of(k) < padding.longest) shorter.push_back(k);
  }
  if (dims == 0 || shorter.empty()) return batch;
  const at::Tensor padded = as_operable(batch).clone(at::MemoryFormat::Preserve);
  const bool has_operators = padded.scalar_type() == batch.scalar_type();
  const at::Tensor value =
      pad_value_of(padded.scalar_type(), has_operators ? padding.value : 0).to(batch.device());
  for (const std::size_t k : shorter) {
    const at::Tensor row = padded.select(0, static_cast<std::int64_t>(k));
    const std::int64_t first = padding.true_part == TruePart::kFirst ? length_of(k) : 0;
    for (std::int64_t d = 0; d < row.dim(); ++d) {
      if (has(dims, d)) row.narrow(d, first, padding.longest - length_of(k)).fill_(value);
    }
  }
  return has_operators ? padded : padded.view(batch.scalar_type());
}

}  // namespace modcache::tensor
