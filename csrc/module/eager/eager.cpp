// SPDX-License-Identifier: Apache-2.0
#include "module/eager/eager.h"

#include <utility>

#include "tensor/tree.h"

namespace modcache::module {
namespace {

// Fills in what depends on the input. Returns false when the call is to be run uncached; it was
// counted.
bool prepare(CallParts& parts, const at::IValue& input, std::int64_t params_grad_pattern,
             tensor::Per per, std::int64_t rows) {
  if (is_bypassed_by_mode(rows)) return false;
  const tensor::RowPadding* const padding = parts.padding.has_value() ? &*parts.padding : nullptr;
  if (!read_input(parts, tensor::summarize_input(input, per, padding), rows)) return false;
  parts.grad_pattern = grad_pattern(static_cast<std::uint64_t>(params_grad_pattern), parts.input);
  return true;
}

}  // namespace

Begun begin_eager(CallParts parts, const std::string& key, const at::IValue& input,
                  std::int64_t params_grad_pattern) {
  Begun begun;
  if (!prepare(parts, input, params_grad_pattern, tensor::Per::kCall, 1)) return begun;
  begun.run = c10::make_intrusive<Run>(std::move(parts), key);
  Call& call = begun.run->call;
  if (const auto hit = call.lookup()) {
    const auto& device = call.parts().input.device;
    begun.next = Next::kReturn;
    begun.value = hit->is_lone_tensor()
                      ? at::IValue(hit->hand_out_tensor(device))
                      : tensor::rebuild_tagged(hit->root(), hit->hand_out(device));
    begun.run.reset();
    return begun;
  }
  if (call.is_bypassed()) {
    begun.run.reset();
    return begun;
  }
  call.begin_run();
  begun.next = Next::kRunAndFinish;
  return begun;
}

RowsBegun begin_eager_rows(CallParts parts, BatchKeys keys, const at::IValue& input,
                           std::int64_t params_grad_pattern) {
  const auto count = static_cast<std::int64_t>(keys.rows());
  tensor::check_rows(input, count);
  RowsBegun begun;
  if (count == 0) return begun;
  if (!prepare(parts, input, params_grad_pattern, tensor::Per::kRow, count)) return begun;
  begun.run = c10::make_intrusive<RowsRun>(std::move(parts), std::move(keys));
  RowsCall& call = begun.run->call;
  auto rows = call.next_rows();
  if (call.is_bypassed()) {
    begun.run.reset();
    return begun;
  }
  begun.next = rows.has_value() ? Next::kRunAndFinish : Next::kReturn;
  if (rows.has_value()) {
    begun.rows = *std::move(rows);
    call.begin_run();
  }
  return begun;
}

TaggedRows eager_rows(RowsCall& call) {
  TaggedRows rows;
  if (const auto together = call.together()) {
    rows.together = tensor::rebuild_tagged(together->root, together->tensors);
    return rows;
  }
  rows.apart.emplace();
  for (const tensor::Flat& row : call.apart()) {
    rows.apart->push_back(tensor::rebuild_tagged(row.root, row.tensors));
  }
  return rows;
}

}  // namespace modcache::module
