// SPDX-License-Identifier: Apache-2.0
#include "module/eager/eager.h"

#include <utility>
#include <vector>

#include "module/call/rules.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::module {

Begun begin_eager(CallParts parts, CallKeys keys, const at::IValue& input,
                  std::int64_t params_grad_pattern) {
  const auto rows = static_cast<std::int64_t>(keys.rows());
  if (!keys.is_whole()) tensor::check_rows(input, rows);
  if (rows == 0 || is_bypassed_by_mode(parts, rows)) return {};
  if (!read_input(parts, input, keys.per(), rows)) return {};
  parts.grad_pattern = grad_pattern(static_cast<std::uint64_t>(params_grad_pattern), parts.input);
  Begun begun = Call(parts, keys).begin();
  if (begun.run != nullptr) begun.run->start();
  return begun;
}

at::IValue tagged_value(CallValue value) {
  if (auto* const lone = std::get_if<at::Tensor>(&value)) return std::move(*lone);
  if (auto* const flat = std::get_if<tensor::Flat>(&value)) {
    return tensor::rebuild_tagged(flat->root, flat->tensors);
  }
  std::vector<at::IValue> rows;
  for (const tensor::Flat& row : std::get<std::vector<tensor::Flat>>(value)) {
    rows.push_back(tensor::rebuild_tagged(row.root, row.tensors));
  }
  return c10::ivalue::Tuple::create(std::move(rows));
}

}  // namespace modcache::module
