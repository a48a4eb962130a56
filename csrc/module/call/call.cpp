// SPDX-License-Identifier: Apache-2.0
#include "module/call/call.h"

#include <ATen/core/class_type.h>

#include <utility>

#include "cache/latency.h"
#include "module/call/rules.h"
#include "module/call/run.h"
#include "module/call/stored_rows.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/whole_value.h"

namespace modcache::module {

tensor::InputSampler sampler_of(const CallParts& parts, tensor::Per per) {
  if (!parts.padding.has_value()) return {parts.input.tensors, per};
  return {parts.input.tensors, parts.input.padded_dims, *parts.padding};
}

Call::Call(CallParts& parts, CallKeys& keys)
    : parts_(parts), keys_(keys), grad_is_unknown_(is_grad_unknown(parts)) {}

Call::~Call() = default;

// Calls with padding, or with keys that repeat, have more to compare: their Run looks them up.
bool Call::is_plain() const {
  return !parts_.scope.empty() && !grad_is_unknown_ && may_read(parts_.mode) &&
         !always_runs(parts_.mode) && !parts_.padding.has_value() && keys_.repeated().empty() &&
         !parts_.runs_whole;
}

Begun Call::begin() {
  Begun begun;
  if (!is_plain()) {
    begun.run = std::make_unique<Run>(std::move(*this));
  } else {
    if (parts_.cache->bypasses(parts_.scope, keys_.rows())) return begun;
    const tensor::InputSampler input = sampler_of(parts_, keys_.per());
    LookedUp looked_up = look_up(input, lookup_options(parts_, keys_));
    begun.value = std::move(looked_up.value);
    if (begun.value.has_value()) return begun;
    begun.run = std::make_unique<Run>(std::move(*this), looked_up.keys.context());
    begun.run->take_found(std::move(looked_up.keys), looked_up.found);
  }
  if (begun.run->step() == nullptr) {  // another thread ran it, or all of it was there
    begun.value = begun.run->value();
    ended_ = std::move(begun.run);
  } else if (begun.run->is_bypassed()) {
    begun.run.reset();
  }
  return begun;
}

std::optional<CallValue> Call::find_stored() {
  // Sampled hits are compared with a run.
  if (!is_plain() || parts_.settings().verify_share > 0) return std::nullopt;
  if (parts_.cache->is_switched_off(parts_.scope)) return std::nullopt;
  cache::LookupOptions options = lookup_options(parts_, keys_);
  options.will_run = false;
  options.notes_misses = false;
  options.asks_server = false;  // begin() would ask it again
  return look_up(sampler_of(parts_, keys_.per()), options).value;
}

Call::LookedUp Call::look_up(const tensor::InputSampler& input,
                             const cache::LookupOptions& options) const {
  const cache::HitTimer timer;
  cache::Cache& cache = *parts_.cache;
  LookedUp looked_up(cache, lookup_keys(input), options);
  looked_up.value = value_of(looked_up.keys, looked_up.found);
  if (!looked_up.value.has_value()) return looked_up;
  cache.count_hits(looked_up.keys, looked_up.found, may_write(parts_.mode));
  timer.note_hit(cache.counters().latencies());
  return looked_up;
}

std::unique_ptr<Run> Call::reject(const std::string& why_apart) {
  auto run = ended_ != nullptr ? std::move(ended_) : std::make_unique<Run>(std::move(*this));
  run->reject(why_apart);
  return run;
}

cache::Keys Call::lookup_keys(const tensor::InputSampler& input) const {
  cache::ContextPtr context = parts_.context(keys_.per());
  cache::Keys keys = keys_.is_whole() ? cache::Keys(std::move(context), keys_.key(0))
                                      : cache::Keys(std::move(context), keys_.distinct());
  describe(keys, parts_, keys_);
  if (parts_.cache->compares_input(*parts_.configuration, parts_.scope, input)) keys.input = &input;
  return keys;
}

void describe(cache::Keys& asked, const CallParts& parts, const CallKeys& keys) {
  asked.configuration = parts.configuration;
  asked.signature = parts.input.signature;
  asked.form = keys.is_whole() ? cache::Form::kWhole : cache::Form::kRow;
}

cache::LookupOptions lookup_options(const CallParts& parts, const CallKeys& keys) {
  cache::LookupOptions options;
  options.may_write = may_write(parts.mode);
  options.reads_values = keys.is_whole();
  options.will_run = options.may_write;
  options.may_sample = true;
  return options;
}

// Returns nothing where something is missing or does not fit together.
std::optional<CallValue> Call::value_of(const cache::Keys& keys, cache::Found& found) const {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_found(i)) return std::nullopt;
  }
  const std::optional<at::Device>& device = parts_.input.device;
  if (keys_.is_whole()) return handed_out(*found.entry(0), device);
  if (auto row = plain_row_in_memory(found)) return row;
  tensor::RowsOutput output(keys_.rows(), is_output_pinned(parts_));
  add_stored_rows(parts_, {keys, found, may_write(parts_.mode), keys_.rows()}, output);
  const tensor::RowMarks* const marks = output.row_marks();
  const bool has_constants = marks != nullptr && !marks->constants.empty();
  if (has_constants || found.has_missing() || output.has_odd_stored_rows()) return std::nullopt;
  auto together = output.together(device);
  if (!together.has_value()) return std::nullopt;
  return call_value(*std::move(together));
}

// A batch of one plain row in memory needs none of the lists of a batch, which cost more than the
// row.
std::optional<CallValue> Call::plain_row_in_memory(const cache::Found& found) const {
  if (keys_.rows() != 1 || found.entry(0) == nullptr) return std::nullopt;
  // A result that was next to its input goes to the device of this one.
  if (parts_.input.device.has_value() && !parts_.input.device->is_cpu()) return std::nullopt;
  const auto& row = static_cast<const tensor::RowValue&>(*found.entry(0)->value);
  if (!row.is_plain_lone_tensor()) return std::nullopt;
  return row.batch_of_one();
}

std::string CallParts::name() const {
  if (module == nullptr) return class_name;
  const auto& name = module->type()->name();
  return name.has_value() ? name->name() : "module";
}

CallValue call_value(tensor::Flat flat) {
  if (flat.root.kind == tensor::Node::Kind::kTensor) return std::move(flat.tensors.front());
  return flat;
}

CallValue handed_out(const cache::Entry& entry, std::optional<at::Device> device) {
  const auto& value = static_cast<const tensor::WholeValue&>(*entry.value);
  if (value.is_lone_tensor()) return value.hand_out_tensor(device);
  return tensor::Flat{value.root(), value.hand_out(device), {}};
}

// The batch is assembled in pinned memory when it goes on to a device.
bool is_output_pinned(const CallParts& parts) {
  const auto& device = parts.input.device;
  return (device.has_value() && !device->is_cpu()) ||
         parts.cache->place_of(parts.scope).kind == cache::Place::Kind::kPinned;
}

}  // namespace modcache::module
