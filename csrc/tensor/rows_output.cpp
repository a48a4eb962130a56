// SPDX-License-Identifier: Apache-2.0
#include "tensor/rows_output.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <string>

#include "base/fork.h"
#include "tensor/dim_order.h"
#include "tensor/error_text.h"
#include "tensor/output_buffer.h"
#include "tensor/payload.h"
#include "tensor/placement.h"
#include "tensor/row_bytes.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

// A thread must copy at least this much to be worth starting.
constexpr std::size_t kBytesPerThread = 4 << 20;

// How many rows ahead of the copied one are prefetched.
constexpr std::size_t kAhead = 2;

// Prefetches the first 4 KiB of a row. The rows of a batch are scattered, so the hardware
// prefetcher has to detect the beginning of each anew; after 4 KiB it has caught up.
void prefetch(const StoredRow& row) {
  constexpr std::size_t kLineBytes = 64;
  constexpr std::size_t kMostBytes = 4 << 10;
  if (row.bytes == nullptr) return;
  const std::size_t size_bytes = std::min(kMostBytes, row.layout->payload_size_bytes());
  for (std::size_t i = 0; i < size_bytes; i += kLineBytes) __builtin_prefetch(row.bytes + i);
}

// Runs `body` over [0, count), in several threads where `size_bytes` in all make that worthwhile. A
// forked child uses one thread, as the threads of torch's pool exist in its parent only.
template <typename Body>
void for_each(std::size_t count, std::size_t size_bytes, const Body& body) {
  const auto all = static_cast<std::int64_t>(count);
  if (size_bytes < 2 * kBytesPerThread || fork_generation() != 0) {
    for (std::int64_t i = 0; i < all; ++i) body(static_cast<std::size_t>(i));
    return;
  }
  const auto grain = std::max<std::int64_t>(
      1, all * static_cast<std::int64_t>(kBytesPerThread) / static_cast<std::int64_t>(size_bytes));
  at::parallel_for(0, all, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(static_cast<std::size_t>(i));
  });
}

// Turns exceptions into kIoError: torch may refuse the sizes that a header claims, or run out of
// memory.
template <typename Body>
Status without_throwing(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return Status::io_error(std::string("a stored row could not be made: ") + text_of(error));
  }
}

// Returns the decoded bytes of the row; `scratch` holds them where they had to be read.
Result<const std::byte*> payload_of(const StoredRow& row, const RowsOutput::ReadStored& read,
                                    std::unique_ptr<std::byte[]>& scratch) {
  if (row.bytes != nullptr) return row.bytes;
  scratch.reset(new std::byte[row.layout->payload_size_bytes()]);
  MODCACHE_RETURN_IF_ERROR(read_payload(
      *row.layout, row.stored_size_bytes, [&](void* target) { return read(row.index, target); },
      scratch.get()));
  return scratch.get();
}

}  // namespace

at::Tensor RowsOutput::room(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return is_pinned_ ? pinned_tensor(sizes, dtype) : output_tensor(sizes, dtype);
}

Status RowsOutput::begin(const StoredRow& first) {
  layout_ = first.layout->shared_from_this();
  for (std::size_t i = 0; i < layout_->tensors().size(); ++i) {
    if (!has_countable_elements(row_sizes(i), static_cast<std::int64_t>(rows_))) {
      return Status::corruption("a row has sizes that overflow in a batch");
    }
  }
  OrdinaryTensors ordinary;
  for (std::size_t i = 0; i < layout_->places().size(); ++i) {
    std::vector<std::int64_t> sizes{static_cast<std::int64_t>(rows_)};
    const auto of_row = permuted(row_sizes(i), layout_->tensors()[i].dim_order);
    sizes.insert(sizes.end(), of_row.begin(), of_row.end());
    const Layout::Place& place = layout_->places()[i];
    // Any value that results are padded with has to fit.
    const bool is_widened = padding_ != nullptr && padding_->value != 0;
    block_.push_back(room(sizes, is_widened ? place.dtype : place.stored_dtype));
  }
  return Status::ok();
}

bool RowsOutput::fits_the_first(const StoredRow& row) const {
  return row.layout == layout_.get() || row.layout->has_rows_like(*layout_, padding_ != nullptr);
}

// Returns the sizes of a row in this batch.
std::vector<std::int64_t> RowsOutput::row_sizes(std::size_t i) const {
  const TensorLayout& tensor = layout_->tensors()[i];
  std::vector<std::int64_t> sizes = tensor.sizes;
  for (std::size_t d = 0; padding_ != nullptr && d < sizes.size(); ++d) {
    if (((tensor.padded_dims >> d) & 1) != 0) sizes[d] = padding_->longest;
  }
  return sizes;
}

std::optional<std::vector<DimSet>> RowsOutput::padded_dims() const {
  if (stored_.empty()) return std::nullopt;
  return layout_->padded_dims();
}

const RowMarks* RowsOutput::row_marks() const {
  return stored_.empty() ? nullptr : &layout_->row_marks();
}

bool RowsOutput::has_odd_length(const StoredRow& row) const {
  if (padding_ == nullptr) return false;
  const auto length = row.layout->length();
  return length.has_value() && *length != padding_->lengths[row.row];
}

bool RowsOutput::is_shorter(const Layout& layout) const {
  if (padding_ == nullptr) return false;
  const auto length = layout.length();
  return length.has_value() && *length < padding_->longest;
}

// Returns whether the bytes of such a row can be copied into the block.
bool RowsOutput::is_like_block(const Layout& layout, std::size_t i) const {
  if (layout.places()[i].stored_dtype != block_[i].scalar_type()) return false;
  return &layout == layout_.get() ||
         layout.tensors()[i].dim_order == layout_->tensors()[i].dim_order;
}

// A row that was stored under another setting of `dtype`, or unchanged because narrowing it would
// have overflowed, must not be narrowed to the dtype of the others.
bool RowsOutput::fits_the_block(const StoredRow& row) const {
  for (std::size_t i = 0; i < block_.size(); ++i) {
    if (row.layout->places()[i].stored_dtype != block_[i].scalar_type()) return false;
  }
  return true;
}

Status RowsOutput::copy_row(const StoredRow& row, const ReadStored& read) {
  const auto& places = row.layout->places();
  const bool is_whole = places.size() == 1 && !is_shorter(*row.layout);
  if (row.bytes == nullptr && is_whole && is_like_block(*row.layout, 0)) {
    return read_payload(
        *row.layout, row.stored_size_bytes, [&](void* target) { return read(row.index, target); },
        row_of(block_[0], row.row, places[0].size_bytes));
  }
  std::unique_ptr<std::byte[]> scratch;  // NOLINT(*-avoid-c-arrays): not zeroed
  MODCACHE_ASSIGN_OR_RETURN(const auto payload, payload_of(row, read, scratch));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool is_padded = row.layout->tensors()[i].padded_dims != 0 && is_shorter(*row.layout);
    is_padded ? copy_padded(row, i, payload) : copy_tensor(row, i, payload);
  }
  return Status::ok();
}

void RowsOutput::copy_tensor(const StoredRow& row, std::size_t i, const std::byte* payload) {
  const Layout::Place& place = row.layout->places()[i];
  if (is_like_block(*row.layout, i)) {
    copy_bytes(row_of(block_[i], row.row, place.size_bytes), payload + place.offset,
               place.size_bytes);
    return;
  }
  // The block was widened, or the row was cut from a batch with other strides.
  OrdinaryTensors ordinary;
  const at::Tensor target = block_[i].select(0, static_cast<std::int64_t>(row.row));
  as_operable(in_logical_order(target, layout_->tensors()[i].dim_order))
      .copy_(as_operable(tensor_at(*row.layout, i, payload)));
}

void RowsOutput::copy_padded(const StoredRow& row, std::size_t i, const std::byte* payload) {
  OrdinaryTensors ordinary;
  const Layout::Place& place = row.layout->places()[i];
  const TensorLayout& tensor = row.layout->tensors()[i];
  const at::Tensor target = block_[i].select(0, static_cast<std::int64_t>(row.row));
  // A true part in one piece of memory is copied as bytes; a value of 0 has no other bits.
  const bool is_one_piece =
      is_like_block(*row.layout, i) && permuted(tensor.padded_dims, tensor.dim_order) == 1;
  if (is_one_piece && padding_->value == 0) {
    std::byte* const bytes = mutable_bytes(target);
    const std::size_t padding_bytes = target.nbytes() - place.size_bytes;
    const bool is_first = padding_->true_part == TruePart::kFirst;
    copy_bytes(is_first ? bytes : bytes + padding_bytes, payload + place.offset, place.size_bytes);
    std::memset(is_first ? bytes + place.size_bytes : bytes, 0, padding_bytes);
    return;
  }
  const at::Tensor logical = as_operable(in_logical_order(target, layout_->tensors()[i].dim_order));
  const bool has_operators = logical.scalar_type() == target.scalar_type();
  logical.fill_(pad_value_of(logical.scalar_type(), has_operators ? padding_->value : 0.0));
  cut_to_length(logical, tensor.padded_dims, padding_->lengths[row.row], padding_->true_part)
      .copy_(as_operable(tensor_at(*row.layout, i, payload)));
}

Status RowsOutput::read_single(const StoredRow& row, const ReadStored& read) {
  const Layout& layout = *row.layout;
  std::unique_ptr<std::byte[]> scratch;
  MODCACHE_ASSIGN_OR_RETURN(const auto payload, payload_of(row, read, scratch));
  OrdinaryTensors ordinary;
  Single single;
  single.row = row.row;
  single.layout = layout.shared_from_this();
  for (std::size_t i = 0; i < layout.places().size(); ++i) {
    single.tensors.push_back(tensor_at(layout, i, payload));
  }
  singles_.push_back(std::move(single));
  return Status::ok();
}

std::vector<RowsOutput::Failure> RowsOutput::add_stored(const std::vector<StoredRow>& rows,
                                                        const ReadStored& read) {
  std::vector<Status> statuses(rows.size());
  std::vector<std::size_t> left = of_the_commonest_kind(rows, statuses);
  // If no row of the first row's kind can be read, try again with the remaining rows.
  while (!left.empty()) left = add_like_the_first(rows, std::move(left), read, statuses);
  std::vector<Failure> failures;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (!statuses[k].is_ok()) failures.push_back({k, statuses[k]});
  }
  return failures;
}

// Returns the places in `rows` of those that one module may have returned together. The others were
// forged, or stored for other inputs; `statuses` says so.
std::vector<std::size_t> RowsOutput::of_the_commonest_kind(const std::vector<StoredRow>& rows,
                                                           std::vector<Status>& statuses) const {
  struct Kind {
    const Layout* layout;
    std::vector<std::size_t> places;
  };
  std::vector<Kind> kinds;
  if (layout_ != nullptr) kinds.push_back({layout_.get(), {}});
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (has_odd_length(rows[k])) {
      statuses[k] = Status::corruption("a row has another length than its input");
      continue;
    }
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& one) {
      return one.layout == rows[k].layout || rows[k].layout->has_rows_of_the_kind_of(*one.layout);
    });
    if (kind != kinds.end()) {
      kind->places.push_back(k);
    } else {
      kinds.push_back({rows[k].layout, {k}});
    }
  }
  if (kinds.empty()) return {};
  // Rows that were added before determine the kind.
  auto commonest = kinds.begin();
  if (layout_ == nullptr) {
    commonest = std::max_element(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
      return a.places.size() < b.places.size();
    });
  }
  for (auto kind = kinds.begin(); kind != kinds.end(); ++kind) {
    if (kind == commonest) continue;
    for (const std::size_t k : kind->places) {
      statuses[k] = Status::corruption("a row is of another kind than the others of its batch");
    }
  }
  return std::move(commonest->places);
}

// Adds those of `rows` that are at `places`. Returns those that are to be tried again.
std::vector<std::size_t> RowsOutput::add_like_the_first(const std::vector<StoredRow>& rows,
                                                        std::vector<std::size_t> places,
                                                        const ReadStored& read,
                                                        std::vector<Status>& statuses) {
  if (layout_ == nullptr) {
    const Status status = without_throwing([&] { return begin(rows[places[0]]); });
    if (!status.is_ok()) {
      const Layout* const refused = rows[places[0]].layout;
      layout_ = nullptr;
      block_.clear();
      std::vector<std::size_t> others;
      for (const std::size_t k : places) {
        if (rows[k].layout == refused) statuses[k] = status;
        if (rows[k].layout != refused) others.push_back(k);
      }
      return others;
    }
  }
  std::vector<std::size_t> others;
  const auto is_other = [&](std::size_t k) { return !fits_the_first(rows[k]); };
  std::copy_if(places.begin(), places.end(), std::back_inserter(others), is_other);
  std::vector<std::size_t> alike = std::move(places);
  if (!others.empty())
    alike.erase(std::remove_if(alike.begin(), alike.end(), is_other), alike.end());
  const bool fit_the_block = std::all_of(alike.begin(), alike.end(),
                                         [&](std::size_t k) { return fits_the_block(rows[k]); });
  if (!fit_the_block) widen();
  for_each(alike.size(), alike.size() * layout_->payload_size_bytes(), [&](std::size_t i) {
    const std::size_t k = alike[i];
    if (i + kAhead < alike.size()) prefetch(rows[alike[i + kAhead]]);
    statuses[k] = without_throwing([&] { return copy_row(rows[k], read); });
  });
  for (const std::size_t k : alike) {
    if (statuses[k].is_ok()) stored_.push_back(rows[k].row);
  }
  if (stored_.empty()) {
    layout_ = nullptr;
    block_.clear();
    return others;
  }
  for (const std::size_t k : others) {
    statuses[k] = without_throwing([&] { return read_single(rows[k], read); });
  }
  return {};
}

void RowsOutput::add_computed(std::vector<std::int64_t> rows, Flat result) {
  computed_.push_back({std::move(rows), std::move(result)});
}

// Widens the block to the dtype that a hit returns.
void RowsOutput::widen() {
  OrdinaryTensors ordinary;
  for (std::size_t i = 0; i < block_.size(); ++i) {
    const at::ScalarType dtype = layout_->places()[i].dtype;
    if (block_[i].scalar_type() == dtype) continue;
    if (!is_pinned_) {
      block_[i] = block_[i].to(dtype);
      continue;
    }
    const at::Tensor widened = room(block_[i].sizes(), dtype);
    widened.copy_(block_[i]);
    block_[i] = widened;
  }
}

}  // namespace modcache::tensor
