// SPDX-License-Identifier: Apache-2.0
#include "module/call/fast_path.h"

#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/latency.h"
#include "module/call/module_run.h"
#include "module/call/open_call.h"
#include "module/call/stored_rows.h"
#include "tensor/input_sampler.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/value_header.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

const tensor::WholeValue& value_of(const cache::Entry& entry) {
  return static_cast<const tensor::WholeValue&>(*entry.value);
}

const tensor::RowValue& row_of(const cache::Entry& entry) {
  return static_cast<const tensor::RowValue&>(*entry.value);
}

bool has_lone_tensor(const cache::Entry& entry) { return value_of(entry).is_lone_tensor(); }

bool has_plain_row(const cache::Entry& entry) { return row_of(entry).is_plain_lone_tensor(); }

// Returns whether the first row is a lone tensor. Rows of other kinds beside it do not fit
// together.
bool has_lone_tensors(const cache::BatchFound& found) {
  if (found.is_row(0)) {
    return tensor::is_of_lone_tensor(found.rows().header(found.row(0)).value_header);
  }
  return row_of(*found.in_memory(0)).layout().is_lone_tensor();
}

CallParts parts_of(const FastCall& call, tensor::InputSummary input) {
  CallParts parts;
  parts.scope = call.scope;
  parts.method = call.method;
  parts.input = std::move(input);
  return parts;
}

FastAnswer find_whole(const FastCall& call, cache::Session& session, tensor::InputSummary input,
                      cache::Mode mode) {
  const auto context = context_of(session, call.scope, call.method, tensor::Per::kCall,
                                  input.arguments, tensor::arithmetic_state());
  const tensor::InputSampler sampler(std::move(input.tensors), tensor::Per::kCall);
  const cache::Request request{context, call.key, input.signature, &sampler, /*row=*/0};
  if (session.bypasses(call.scope, 1)) return {std::nullopt, /*is_bypassed=*/true};
  cache::EntryPtr entry = session.find_in_memory(request, cache::may_write(mode), has_lone_tensor);
  if (entry == nullptr && call.looks_on_disk && !sampler.is_costly()) {
    entry = session.find_on_disk(request, cache::may_write(mode), tensor::is_of_lone_tensor);
  }
  if (entry == nullptr) return {};
  return {value_of(*entry).hand_out_tensor(input.device)};
}

// The rows in one tensor; nothing where they prove broken or do not fit together.
std::optional<at::Tensor> put_together(const FoundBatch& batch, const CallParts& parts) {
  tensor::RowsOutput output(batch.found.size());
  add_stored_rows(parts, batch, output);
  if (!batch.found.missing().empty() || output.has_odd_stored_rows()) return std::nullopt;
  auto together = output.together(parts.input.device);
  if (!together.has_value() || together->tensors.size() != 1) return std::nullopt;
  return std::move(together->tensors.front());
}

// Finds a batch of one plain row in memory without the lists of keys and rows that a batch needs:
// they cost more than the row. Nothing: find_rows() goes on as for every batch.
std::optional<at::Tensor> find_one_row(const FastCall& call, const CallParts& parts,
                                       const cache::ContextPtr& context,
                                       const cache::InputSource& sampler, cache::Session& session,
                                       bool may_write) {
  // A result that lay beside its input goes to the device of this one.
  if (parts.input.device.has_value() && !parts.input.device->is_cpu()) return std::nullopt;
  const std::string_view key = call.rows->distinct().front();
  const cache::Request request{context, key, parts.input.signature, &sampler, /*row=*/0};
  const cache::EntryPtr entry = session.find_in_memory(request, may_write, has_plain_row);
  if (entry == nullptr) return std::nullopt;
  return row_of(*entry).batch_of_one();
}

FastAnswer find_rows(const FastCall& call, cache::Session& session, const CallParts& parts,
                     cache::Mode mode) {
  // A repeated key may come with two inputs, and other places of values have steps of their own.
  if (!call.rows->repeated().empty() || !session.place_of(call.scope).is_host()) {
    return {};
  }
  const tensor::InputSampler sampler(parts.input.tensors, tensor::Per::kRow);
  if (sampler.is_costly()) return {};
  const auto context = context_of(session, parts, tensor::Per::kRow);
  if (session.bypasses(call.scope, call.rows->rows())) {
    return {std::nullopt, /*is_bypassed=*/true};
  }
  const bool may_write = cache::may_write(mode);
  // The policies would hear of a row in another dtype twice.
  if (call.rows->rows() == 1 && session.settings().dtype == cache::StoredDtype::kKeep) {
    if (auto batch = find_one_row(call, parts, context, sampler, session, may_write)) {
      return {std::move(batch)};
    }
  }
  std::vector<std::size_t> rows(call.rows->rows());
  std::iota(rows.begin(), rows.end(), 0);
  const cache::BatchRequest request{
      context, call.rows->distinct(), parts.input.signature,
      session.compares_input(call.scope, &sampler) ? &sampler : nullptr, rows};
  auto found = session.find_hits(request, may_write);
  if (!found.has_value()) return {};
  std::optional<at::Tensor> together;
  if (has_lone_tensors(*found))
    together = put_together({session, request, *found, may_write, rows.size()}, parts);
  if (!together.has_value()) session.take_back_all(request, *found);
  return {std::move(together)};
}

// Returns whether everything in the input goes row by row, and nothing else might.
bool has_rows(const tensor::InputSummary& input, std::size_t rows) {
  const auto count = static_cast<std::int64_t>(rows);
  return count > 0 && !input.tensors.empty() && input.list_sizes.empty() &&
         tensor::have_rows(input.tensors, count);
}

}  // namespace

std::optional<tensor::InputSummary> plain_input(const FastCall& call) {
  tensor::InputSummary summary = tensor::summarize_input(call.input, call.per());
  if (!summary.why_not_cacheable.empty()) return std::nullopt;
  if (at::GradMode::is_enabled() && summary.requiring_grad.count > 0) return std::nullopt;
  if (call.rows != nullptr && !has_rows(summary, call.rows->rows())) return std::nullopt;
  return summary;
}

FastAnswer find_on_fast_path(const FastCall& call, tensor::InputSummary input, cache::Mode mode) {
  const cache::HitTimer timer;
  cache::Cache& cache = cache::Cache::instance();
  const auto session = cache.session();
  FastAnswer answer = call.rows == nullptr
                          ? find_whole(call, *session, std::move(input), mode)
                          : find_rows(call, *session, parts_of(call, std::move(input)), mode);
  if (answer.value.has_value()) timer.note_hit(cache.counters().latencies());
  return answer;
}

}  // namespace modcache::module
