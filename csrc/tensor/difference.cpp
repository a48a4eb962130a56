// SPDX-License-Identifier: Apache-2.0
#include "tensor/difference.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <sstream>

#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

at::Tensor as_wide(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().to(at::kCPU);
  return plain.to(plain.is_complex() ? at::kComplexDouble : at::kDouble);
}

// Replaces infinities and NaN by 0: those are compared for equality instead.
at::Tensor finite_part(const at::Tensor& tensor) {
  return at::where(at::isfinite(tensor), tensor, at::zeros_like(tensor));
}

bool are_same_where_not_finite(const at::Tensor& a, const at::Tensor& b) {
  if (!at::equal(at::isfinite(a), at::isfinite(b)) || !at::equal(at::isnan(a), at::isnan(b))) {
    return false;
  }
  const at::Tensor is_infinite =
      at::isfinite(a).logical_not().logical_and(at::isnan(a).logical_not());
  return at::equal(a.masked_select(is_infinite), b.masked_select(is_infinite));
}

// Numbers that no operator unpacks from their byte are compared like integers.
bool has_tolerance(const at::Tensor& tensor) {
  return (tensor.is_floating_point() || tensor.is_complex()) &&
         !is_packed_float(tensor.scalar_type());
}

std::string difference_of(const at::Tensor& fresh, const at::Tensor& stored,
                          const Tolerance& tolerance) {
  std::ostringstream text;
  if (fresh.scalar_type() != stored.scalar_type() || fresh.sizes() != stored.sizes()) {
    text << fresh.scalar_type() << fresh.sizes() << " instead of " << stored.scalar_type()
         << stored.sizes();
    return text.str();
  }
  if (fresh.numel() == 0) return {};
  if (!has_tolerance(fresh)) {
    const at::Tensor a = as_operable(fresh.detach().to(at::kCPU));
    return at::equal(a, as_operable(stored.to(at::kCPU))) ? "" : "other integers";
  }
  const at::Tensor a = as_wide(fresh);
  const at::Tensor b = as_wide(stored);
  if (!are_same_where_not_finite(a, b)) return "other infinities or NaNs";
  const double largest = at::abs(finite_part(b)).max().item().toDouble();
  const double apart = at::abs(at::sub(finite_part(a), finite_part(b))).max().item().toDouble();
  if (apart <= tolerance.relative * largest + tolerance.absolute) return {};
  text << "numbers that differ by up to " << apart << ", where the largest is " << largest;
  return text.str();
}

}  // namespace

std::string difference(const Flat& fresh, const Flat& stored, const Tolerance& tolerance) {
  OrdinaryTensors ordinary;
  if (fresh.root != stored.root || fresh.tensors.size() != stored.tensors.size()) {
    return "other plain values, or another structure";
  }
  for (std::size_t i = 0; i < fresh.tensors.size(); ++i) {
    std::string found = difference_of(fresh.tensors[i], stored.tensors[i], tolerance);
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace modcache::tensor
