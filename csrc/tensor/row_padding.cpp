// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_padding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>

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
             ? "its rows are padded on the left, which shifts their positions; pad them on the "
               "right"
             : "its mask has holes";
}

}  // namespace

RowPadding RowPadding::of_mask(const at::Tensor& mask, double value) {
  TORCH_CHECK_VALUE(why_not_storable(mask) == nullptr && mask.dim() == 2, kOp,
                    ": a mask is a dense tensor [rows, longest], but got ", mask.sizes());
  OrdinaryTensors ordinary;
  const at::Tensor ones = mask.detach().to(at::kCPU).ne(0).contiguous();
  RowPadding padding;
  padding.longest = ones.size(1);
  padding.value = value;
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

DimSet dims_of_size(const at::Tensor& batch, std::int64_t longest) {
  DimSet dims = 0;
  for (std::int64_t d = 1; d < batch.dim(); ++d) {
    if (batch.size(d) == longest) dims |= DimSet{1} << (d - 1);
  }
  return dims;
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
  const DimSet dims = dims_of_size(tensor, longest) << 1;
  const at::Tensor one = tensor.narrow(0, row, 1);
  if (length <= longest) return cut_to_length(one, dims, length);
  std::vector<std::int64_t> pad;  // from the last dimension to the first: before, after
  for (std::int64_t d = one.dim(); d-- > 0;) {
    pad.push_back(0);
    pad.push_back(has(dims, d) ? length - longest : 0);
  }
  return at::constant_pad_nd(one, pad);
}

at::IValue one_row_of_length(const at::IValue& input, std::int64_t row, std::int64_t longest,
                             std::int64_t length) {
  return with_tensors(input, [&](const at::Tensor& tensor) {
    return one_row_of_length(tensor, row, longest, length);
  });
}

at::Tensor with_padding(const at::Tensor& batch, DimSet dims, const RowPadding& padding,
                        const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(rows.size());
  for (const std::int64_t row : rows) {
    lengths.push_back(padding.lengths[static_cast<std::size_t>(row)]);
  }
  const bool is_full = std::all_of(lengths.begin(), lengths.end(),
                                   [&](std::int64_t length) { return length == padding.longest; });
  if (dims == 0 || is_full) return batch;
  std::vector<std::int64_t> by_row(static_cast<std::size_t>(batch.dim()), 1);
  by_row[0] = batch.size(0);
  const at::Tensor end = at::tensor(lengths, at::kLong).to(batch.device()).view(by_row);
  const at::Tensor places =
      at::arange(padding.longest, at::TensorOptions().dtype(at::kLong).device(batch.device()));
  // A dtype that lacks operators is padded with bits of zero.
  at::Tensor padded = as_operable(batch);
  const bool is_itself = padded.scalar_type() == batch.scalar_type();
  const at::Tensor value =
      at::scalar_tensor(is_itself ? padding.value : 0.0, padded.options().requires_grad(false));
  for (std::int64_t d = 0; d + 1 < batch.dim(); ++d) {
    if (!has(dims, d)) continue;
    std::vector<std::int64_t> along(static_cast<std::size_t>(batch.dim()), 1);
    along[static_cast<std::size_t>(d) + 1] = padding.longest;
    padded = at::where(places.view(along).lt(end), padded, value);
  }
  return is_itself ? padded : padded.view(batch.scalar_type());
}

}  // namespace modcache::tensor
