// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_padding.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

constexpr const char* kOp = "modcache.lookup_or_run";

bool has(DimSet dims, std::int64_t dimension) {
  return dimension < 64 && ((dims >> dimension) & 1) != 0;
}

// Returns why the ones of a row do not come first; empty when they do.
std::string why_not_first(const bool* mask, std::int64_t size, std::int64_t length) {
  if (std::all_of(mask, mask + length, [](bool is_true) { return is_true; })) return {};
  return std::all_of(mask + size - length, mask + size, [](bool is_true) { return is_true; })
             ? "padded on the left, which shifts positions; pad it on the right"
             : "padded with holes in its mask";
}

}  // namespace

RowPadding RowPadding::of_mask(const at::Tensor& mask, double value) {
  TORCH_CHECK_VALUE(why_not_storable(mask) == nullptr && mask.dim() == 2, kOp,
                    ": a mask is a dense tensor [rows, longest], but got ", mask.sizes());
  OrdinaryTensors ordinary;
  const at::Tensor ones = as_operable(mask.detach()).to(at::kCPU).ne(0).contiguous();
  RowPadding padding;
  padding.longest = ones.size(1);
  padding.value = value;
  padding.mask = mask;
  const auto* row = reinterpret_cast<const bool*>(const_bytes(ones));
  for (std::int64_t i = 0; i < ones.size(0); ++i, row += padding.longest) {
    padding.lengths.push_back(std::count(row, row + padding.longest, true));
    if (padding.why_not.empty()) {
      padding.why_not = why_not_first(row, padding.longest, padding.lengths.back());
    }
  }
  return padding;
}

RowPadding RowPadding::of_lengths(const at::Tensor& lengths, std::int64_t longest, double value) {
  TORCH_CHECK_VALUE(why_not_storable(lengths) == nullptr && lengths.dim() == 1 &&
                        c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
                    kOp, ": lengths are a tensor of integers [rows], but got ",
                    lengths.scalar_type(), lengths.sizes());
  OrdinaryTensors ordinary;
  const at::Tensor numbers = lengths.detach().to(at::kCPU).to(at::kLong).contiguous();
  RowPadding padding;
  padding.longest = longest;
  padding.value = value;
  const auto* first = reinterpret_cast<const std::int64_t*>(const_bytes(numbers));
  padding.lengths.assign(first, first + numbers.numel());
  for (std::size_t i = 0; i < padding.lengths.size(); ++i) {
    TORCH_CHECK_VALUE(padding.lengths[i] >= 0 && padding.lengths[i] <= longest, kOp, ": length ", i,
                      " is ", padding.lengths[i], ", but must be from 0 to ", longest,
                      ", the size that the batch was padded to");
  }
  return padding;
}

bool is_ambiguous(const at::Tensor& batch, std::int64_t longest) {
  const at::IntArrayRef sizes = batch.sizes();
  return batch.dim() > 2 && std::find(sizes.begin() + 2, sizes.end(), longest) != sizes.end();
}

at::Tensor cut_to_length(const at::Tensor& row, DimSet dims, std::int64_t length) {
  at::Tensor cut = row;
  for (std::int64_t d = 0; d < row.dim(); ++d) {
    if (has(dims, d)) cut = cut.narrow(d, 0, length);
  }
  return cut;
}

at::Tensor one_row_of_length(const at::Tensor& tensor, std::int64_t row, std::int64_t longest,
                             std::int64_t length) {
  const at::Tensor one = tensor.narrow(0, row, 1);
  if (!is_padded(tensor, longest) || length == longest) return one;
  if (length <= longest) return one.narrow(1, 0, length);
  std::vector<std::int64_t> pad(static_cast<std::size_t>(2 * (one.dim() - 1)), 0);
  pad.back() = length - longest;  // after dimension 1; the last dimension comes first
  return at::constant_pad_nd(one, pad);
}

at::IValue one_row_of_length(const at::IValue& input, std::int64_t row, std::int64_t longest,
                             std::int64_t length, std::uint64_t kept) {
  unsigned padded = 0;
  return with_tensors(input, [&](const at::Tensor& tensor) {
    const bool is_kept = is_padded(tensor, longest) && ((kept >> padded++) & 1) != 0;
    return one_row_of_length(tensor, row, longest, is_kept ? longest : length);
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
    for (std::int64_t d = 0; d < row.dim(); ++d) {
      if (has(dims, d)) row.narrow(d, length_of(k), padding.longest - length_of(k)).fill_(value);
    }
  }
  return has_operators ? padded : padded.view(batch.scalar_type());
}

}  // namespace modcache::tensor
