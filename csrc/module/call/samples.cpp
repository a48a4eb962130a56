// SPDX-License-Identifier: Apache-2.0
#include "module/call/samples.h"

#include <c10/util/Exception.h>

#include <exception>
#include <memory>
#include <numeric>
#include <utility>

#include "cache/cache.h"
#include "module/call/call_parts.h"
#include "module/call/rules.h"
#include "module/call/stored_rows.h"
#include "tensor/dim_order.h"
#include "tensor/layout.h"
#include "tensor/output_buffer.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

using cache::Counter;
using tensor::Flat;

CallParts parts_of(const SampleNames& names) {
  CallParts parts;
  parts.scope = names.scope;
  parts.method = "__getitem__";
  parts.class_name = names.class_name;
  return parts;
}

std::vector<at::Tensor> read_tensors(const cache::FoundRows& disk, std::size_t row,
                                     const tensor::Layout& layout, Status& status) {
  std::vector<at::Tensor> tensors;
  const auto read = [&](void* target) { return disk.read(row, target); };
  const std::size_t stored_size_bytes = disk.payload_size_bytes(row);
  const auto& places = layout.places();
  if (places.size() == 1 && places[0].dtype == places[0].stored_dtype) {
    const tensor::OrdinaryTensors ordinary;
    tensors.push_back(tensor::output_tensor(places[0].sizes, places[0].dtype));
    status =
        tensor::read_payload(layout, stored_size_bytes, read, tensor::mutable_bytes(tensors[0]));
    tensor::restore_logical_order(tensors[0], layout.tensors()[0].dim_order);
    return tensors;
  }
  std::string payload;
  const std::byte* bytes = layout.is_encoded() ? nullptr : disk.verified_bytes(row);
  if (bytes == nullptr) {
    payload.resize(layout.payload_size_bytes());
    status = tensor::read_payload(layout, stored_size_bytes, read, payload.data());
    bytes = reinterpret_cast<const std::byte*>(payload.data());
  }
  for (std::size_t i = 0; status.is_ok() && i < places.size(); ++i) {
    tensors.push_back(tensor::tensor_at(layout, i, bytes));
  }
  return tensors;
}

Result<Flat> read_sample(const cache::FoundRows& disk, std::size_t row, StoredLayouts& layouts) {
  MODCACHE_ASSIGN_OR_RETURN(const auto layout, layouts.of(row));
  // torch may still refuse the sizes, or run out of memory.
  try {
    Status status = Status::ok();
    std::vector<at::Tensor> tensors = read_tensors(disk, row, *layout, status);
    if (!status.is_ok()) return status;
    return Flat{layout->root(), std::move(tensors), {}};
  } catch (const std::exception& error) {
    return Status::io_error("a stored tensor could not be made: " + tensor::text_of(error));
  }
}

}  // namespace

cache::Keys sample_keys(const cache::ConfigurationPtr& configuration, std::string_view scope,
                        std::span<const std::string_view> keys) {
  cache::Keys all(cache::make_context({configuration->settings.name_space, scope, "forward",
                                       cache::Form::kWhole, "", tensor::arithmetic_state()}),
                  keys);
  all.configuration = configuration;
  return all;
}

SamplesFound look_up_samples(const SampleNames& names, const std::vector<std::string_view>& keys) {
  SamplesFound found;
  found.values.resize(keys.size());
  const CallParts parts = parts_of(names);
  if (is_bypassed_by_mode(parts, static_cast<std::int64_t>(keys.size()))) {
    found.is_off = true;
    return found;
  }
  if (keys.empty()) return found;
  cache::Cache& cache = *parts.cache;
  const cache::Keys asked = sample_keys(parts.configuration, names.scope, keys);
  if (!may_read(parts.mode) || always_runs(parts.mode)) {
    found.begun = cache.begin_run(asked, may_write(parts.mode));
    return found;
  }
  cache::LookupOptions options;
  options.may_write = may_write(parts.mode);
  cache::Found places = cache.lookup(asked, options);
  StoredLayouts layouts(places.rows());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!places.is_found(i)) continue;
    if (const cache::EntryPtr& entry = places.entry(i)) {
      const auto& value = static_cast<const tensor::WholeValue&>(*entry->value);
      found.values[i] = Flat{value.root(), value.hand_out(std::nullopt), {}};
      continue;
    }
    auto sample = read_sample(places.rows(), places.row(i), layouts);
    if (sample.is_ok()) {
      found.values[i] = std::move(sample).value();
    } else {
      cache.refuse(asked, places, i, sample.status(), may_write(parts.mode));
    }
  }
  cache.count_hits(asked, places, may_write(parts.mode));
  // After the lookup, which has asked the server for the generation.
  if (places.has_missing()) found.begun = cache.begin_run(asked, may_write(parts.mode));
  return found;
}

void store_samples(const SampleNames& names, const cache::Generation& begun,
                   const std::vector<std::string_view>& keys, const std::vector<Flat>& values,
                   const std::vector<std::int64_t>& run_us) {
  TORCH_CHECK(keys.size() == values.size() && keys.size() == run_us.size(),
              "modcache: samples of another number than their keys");
  for (const Flat& value : values) {
    const std::string why =
        value.requires_grad() ? "one that requires grad" : tensor::why_not_storable(value);
    TORCH_CHECK_TYPE(why.empty(), "a sample cannot be cached: a tensor or value in it is ", why);
  }
  const CallParts parts = parts_of(names);
  const cache::Keys all = sample_keys(parts.configuration, names.scope, keys);
  std::int64_t misses = static_cast<std::int64_t>(keys.size());
  for (std::size_t i = 0; may_read(parts.mode) && always_runs(parts.mode) && i < keys.size(); ++i) {
    const Comparison comparison = compare_with_stored(parts, all, i, [&] { return values[i]; });
    if (comparison != Comparison::kNothingStored) --misses;
  }
  auto& counters = parts.cache->counters();
  counters.add(names.scope, Counter::kMisses, misses);
  counters.add(names.scope, Counter::kRunUs,
               std::accumulate(run_us.begin(), run_us.end(), std::int64_t{0}));
  if (!may_write(parts.mode)) return;
  try {
    std::vector<cache::EntryPtr> entries;
    entries.reserve(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      entries.push_back(std::make_shared<const cache::Entry>(
          cache::Entry{tensor::WholeValue::copy_of(values[i], std::nullopt, parts.settings().dtype),
                       /*signature=*/"", run_us[i]}));
    }
    parts.cache->store(all, entries, {always_runs(parts.mode), &begun});
  } catch (const std::exception& error) {
    report_failure(parts, "stored", error);
  }
}

}  // namespace modcache::module
