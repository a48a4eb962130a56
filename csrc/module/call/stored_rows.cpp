// SPDX-License-Identifier: Apache-2.0
#include "module/call/stored_rows.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "module/call/row_proof.h"
#include "tensor/layout.h"
#include "tensor/row_value.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

using RowValuePtr = std::shared_ptr<const tensor::RowValue>;

const tensor::RowValue& value_in_memory(const cache::Found& found, std::size_t key) {
  return static_cast<const tensor::RowValue&>(*found.entry(key)->value);
}

// Makes a key missing, as what was found for it cannot be used.
void refuse(const CallParts& parts, const FoundBatch& batch, std::size_t key,
            const Status& status) {
  parts.cache->refuse(batch.keys, batch.found, key, status, batch.may_write);
}

// Puts rows that are resident on a device together there, as a run's result would be. Returns false
// when they do not fit together or the device failed.
bool add_on_device(const CallParts& parts, const FoundBatch& batch,
                   const std::vector<std::size_t>& keys, tensor::RowsOutput& output) {
  std::vector<RowValuePtr> values;
  std::vector<std::int64_t> rows;
  for (const std::size_t key : keys) {
    values.push_back(value_in_memory(batch.found, key).shared());
    // A constant of the batch is put together on the host.
    if (!values.back()->layout().row_marks().constants.empty()) return false;
    rows.push_back(static_cast<std::int64_t>(batch.keys.input_row(key)));
  }
  try {
    auto together = tensor::together_on_device(values, parts.input.device);
    if (!together.has_value()) return false;
    output.add_computed(std::move(rows), *std::move(together));
    return true;
  } catch (const std::exception& error) {
    report_failure(parts, "put together on its device", error);
    return false;
  }
}

Result<RowValuePtr> on_host(const tensor::RowValue& resident) {
  try {
    return resident.on_host();
  } catch (const std::exception& error) {
    return Status::io_error("a row could not be read from its device: " + tensor::text_of(error));
  }
}

tensor::StoredRow stored_row_of(const tensor::RowValue& value) {
  tensor::StoredRow row;
  row.layout = &value.layout();
  row.bytes = value.bytes();
  return row;
}

// Returns whether the row is that of an input of another length, which some settings of `match`
// leave out of the comparison. One that only claims to be of this length is broken.
bool is_of_another_length(const CallParts& parts, const FoundBatch& batch, std::size_t key,
                          const tensor::StoredRow& row) {
  if (!parts.padding.has_value()) return false;
  const auto length = row.layout->length();
  return length.has_value() && *length != parts.padding->lengths[row.row] &&
         batch.found.signature(key) != batch.keys.signature_of(key);
}

// Fills in where row `row.index` of `disk` lies.
Status locate(const cache::FoundRows& disk, StoredLayouts& layouts, tensor::StoredRow& row) {
  MODCACHE_ASSIGN_OR_RETURN(row.layout, layouts.of(row.index));
  row.stored_size_bytes = disk.payload_size_bytes(row.index);
  if (!row.layout->is_encoded()) row.bytes = disk.verified_bytes(row.index);
  return Status::ok();
}

// Returns whether entries that were not proven for a batch of this size serve it anyway, as the
// rows are proven by now.
bool takes_unproven(const CallParts& parts, const FoundBatch& batch) {
  const RowProof proof = row_proof_of(parts, *batch.keys.context());
  return proof.is_proven() && (batch.rows > 1 || proof.holds_for_one);
}

}  // namespace

Result<const tensor::Layout*> StoredLayouts::of(std::size_t index) {
  tensor::LayoutPtr& layout = decoded_[rows_.header_index(index)];
  if (layout == nullptr) {
    MODCACHE_ASSIGN_OR_RETURN(layout, tensor::Layout::decode(rows_.header(index).value_header));
  }
  MODCACHE_RETURN_IF_ERROR(tensor::check_payload_size(*layout, rows_.payload_size_bytes(index)));
  return layout.get();
}

// NOLINTNEXTLINE(readability-function-*): one story, of each row to its place
void add_stored_rows(const CallParts& parts, const FoundBatch& batch, tensor::RowsOutput& output) {
  if (!batch.found.has_found()) return;
  const cache::FoundRows& disk = batch.found.rows();
  StoredLayouts layouts(disk);
  std::vector<tensor::StoredRow> rows;
  std::optional<bool> are_proven_now;
  const auto is_usable = [&](std::size_t key, const tensor::Layout& layout) {
    if (!layout.is_unproven(/*in_batch_of_one=*/batch.rows == 1)) return true;
    if (!are_proven_now.has_value()) are_proven_now = takes_unproven(parts, batch);
    if (!*are_proven_now) cache::Cache::skip(batch.found, key);
    return *are_proven_now;
  };
  const auto add = [&](std::size_t key, tensor::StoredRow& row) {
    if (!is_usable(key, *row.layout)) return;
    row.row = batch.keys.input_row(key);
    if (is_of_another_length(parts, batch, key, row)) {
      parts.cache->refuse_as_conflict(batch.keys, batch.found, key);
      return;
    }
    rows.push_back(row);
  };
  rows.reserve(batch.found.size());
  std::vector<std::size_t> resident;
  for (std::size_t key = 0; key < batch.found.size(); ++key) {
    if (!batch.found.is_found(key)) continue;
    tensor::StoredRow row;
    if (batch.found.is_row(key)) {
      row.index = batch.found.row(key);
      if (const Status status = locate(disk, layouts, row); !status.is_ok()) {
        refuse(parts, batch, key, status);
        continue;
      }
    } else {
      const tensor::RowValue& value = value_in_memory(batch.found, key);
      if (value.is_on_device()) {
        if (is_usable(key, value.layout())) resident.push_back(key);
        continue;
      }
      row = stored_row_of(value);
    }
    add(key, row);
  }
  std::vector<RowValuePtr> held;
  // Rows of lengths of their own are padded on the host.
  const bool is_on_device = !resident.empty() && !parts.padding.has_value() &&
                            add_on_device(parts, batch, resident, output);
  if (!is_on_device) {
    for (const std::size_t key : resident) {
      auto value = on_host(value_in_memory(batch.found, key));
      if (!value.is_ok()) {
        refuse(parts, batch, key, value.status());
        continue;
      }
      held.push_back(std::move(value).value());
      tensor::StoredRow row = stored_row_of(*held.back());
      add(key, row);
    }
  }
  const auto failures = output.add_stored(
      rows, [&](std::size_t index, void* target) { return disk.read(index, target); });
  for (const auto& failure : failures) {
    std::size_t key = 0;
    while (batch.keys.input_row(key) != rows[failure.place].row) ++key;
    refuse(parts, batch, key, failure.status);
  }
}

}  // namespace modcache::module
