// SPDX-License-Identifier: Apache-2.0
#include "tensor/rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "base/fork.h"
#include "tensor/difference.h"
#include "tensor/dim_order.h"
#include "tensor/layout.h"
#include "tensor/output_buffer.h"
#include "tensor/placement.h"
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

// Other batches may compute a constant with other roundings.
Tolerance tolerance_of_constant(const at::Tensor& tensor) {
  return {tensor.element_size() < 4 ? 1e-2 : 1e-4, 0};
}

bool is_on_cpu(const Flat& value) {
  return std::all_of(value.tensors.begin(), value.tensors.end(), [](const at::Tensor& tensor) {
    return tensor.device().is_cpu() && !tensor.requires_grad();
  });
}

// Returns a tensor whose memory is its rows one after another, each in the order that `row` says.
at::Tensor rows_in_memory(const at::Tensor& tensor, const TensorLayout& row) {
  const at::Tensor rows = in_memory_order(tensor.detach(), rows_first_order(row));
  return has_plain_memory(rows) ? rows : copy_to_store(rows, cache::StoredDtype::kKeep);
}

bool have_rows_alike(const Flat& a, const Flat& b) {
  if (a.root != b.root || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].scalar_type() != b.tensors[i].scalar_type() ||
        a.tensors[i].sizes().slice(1) != b.tensors[i].sizes().slice(1)) {
      return false;
    }
  }
  return true;
}

// Does what reordered() does, with operators that autograd follows.
at::Tensor in_batch_order(const at::Tensor& rows, const TensorLayout& layout) {
  const DimOrder order = batch_order(layout);
  const at::Tensor logical = in_logical_order(rows, rows_first_order(layout));
  return layout.batch_place == 0
             ? logical
             : in_logical_order(in_memory_order(logical, order).contiguous(), order);
}

}  // namespace

at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong).to(tensor.device());
  const DimOrder order = dim_order_of(tensor);
  const auto batch = std::find(order.begin(), order.end(), 0) - order.begin();
  const at::Tensor selected = in_logical_order(
      at::index_select(in_memory_order(as_operable(tensor), order), batch, index), order);
  return selected.scalar_type() == tensor.scalar_type() ? selected
                                                        : selected.view(tensor.scalar_type());
}

at::IValue select_rows(const at::IValue& input, const std::vector<std::int64_t>& rows) {
  return with_tensors(input, [&](const at::Tensor& tensor) { return select_rows(tensor, rows); });
}

std::string why_no_rows(const Flat& result, std::int64_t rows) {
  if (result.tensors.empty()) return "no tensor";
  for (const at::Tensor& tensor : result.tensors) {
    if (tensor.dim() > 0 && tensor.size(0) == rows) continue;
    std::ostringstream text;
    text << "a tensor of shape " << tensor.sizes();
    return text.str();
  }
  return {};
}

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
      kinds.push_back({rows[k].layout, {}});
      kinds.back().places.reserve(rows.size() - k);
      kinds.back().places.push_back(k);
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
  stored_.reserve(stored_.size() + alike.size());
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

bool RowsOutput::do_computed_fit() const {
  for (const Computed& computed : computed_) {
    if (!have_rows_alike(computed.result, computed_[0].result)) return false;
    if (layout_ != nullptr && !has_rows_of_the_layout(computed.result)) return false;
  }
  return true;
}

bool RowsOutput::has_rows_of_the_layout(const Flat& result) const {
  if (result.root != layout_->root() || result.tensors.size() != block_.size()) return false;
  for (std::size_t i = 0; i < block_.size(); ++i) {
    if (result.tensors[i].scalar_type() != layout_->places()[i].dtype ||
        result.tensors[i].sizes().slice(1) != row_sizes(i)) {
      return false;
    }
  }
  return true;
}

// Returns the layout that the rows of the result are to have.
TensorLayout RowsOutput::row_layout(std::size_t i) const {
  if (layout_ != nullptr) {
    TensorLayout layout = layout_->tensors()[i];
    layout.sizes = row_sizes(i);
    return layout;
  }
  const at::Tensor& first = computed_[0].result.tensors[i];
  TensorLayout layout;
  layout.sizes = first.sizes().slice(1).vec();
  set_dim_order(layout, first, /*is_row=*/true);
  return layout;
}

bool RowsOutput::has_odd_stored_rows() const {
  if (stored_.empty()) return false;
  if (!computed_.empty() && constants_ != layout_->row_marks().constants) return true;
  for (const Single& single : singles_) {
    if (!single.layout->has_rows_of_the_kind_of(*layout_)) return true;
  }
  for (const Computed& computed : computed_) {
    const Flat& result = computed.result;
    if (!result.root.has_form_of(layout_->root())) return true;
    for (std::size_t i = 0; i < result.tensors.size(); ++i) {
      const bool is_alike = result.tensors[i].scalar_type() == layout_->places()[i].dtype &&
                            result.tensors[i].dim() == static_cast<std::int64_t>(block_[i].dim());
      if (!is_alike) return true;
    }
  }
  return false;
}

void RowsOutput::copy_repeated() {
  for (const at::Tensor& tensor : block_) {
    const std::size_t size_bytes = rows_ == 0 ? 0 : tensor.nbytes() / rows_;
    for (const auto& [row, same_as] : repeated_) {
      copy_bytes(row_of(tensor, row, size_bytes), row_of(tensor, same_as, size_bytes), size_bytes);
    }
  }
}

Flat RowsOutput::copied_on_cpu() {
  OrdinaryTensors ordinary;
  Flat together;
  together.root = layout_ != nullptr ? layout_->root() : computed_[0].result.root;
  std::vector<TensorLayout> layouts;
  for (std::size_t i = 0; i < computed_[0].result.tensors.size(); ++i) {
    layouts.push_back(row_layout(i));
    if (layout_ != nullptr) continue;
    std::vector<std::int64_t> sizes = permuted(layouts[i].sizes, layouts[i].dim_order);
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(rows_));
    block_.push_back(room(sizes, computed_[0].result.tensors[i].scalar_type()));
  }
  for (const Computed& computed : computed_) {
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const at::Tensor source = rows_in_memory(computed.result.tensors[i], layouts[i]);
      const std::size_t size_bytes = source.nbytes() / computed.rows.size();
      const std::byte* bytes = const_bytes(source);
      for (std::size_t k = 0; k < computed.rows.size(); ++k) {
        copy_bytes(row_of(block_[i], static_cast<std::size_t>(computed.rows[k]), size_bytes),
                   bytes + k * size_bytes, size_bytes);
      }
    }
  }
  copy_repeated();
  for (std::size_t i = 0; i < block_.size(); ++i) {
    together.tensors.push_back(
        reordered(block_[i], rows_first_order(layouts[i]), batch_order(layouts[i])));
  }
  return together;
}

// A copy from pinned memory runs while the host continues; torch keeps that memory until it is
// done.
at::Tensor RowsOutput::sent(const at::Tensor& block, const at::Device& device) const {
  return block.to(device, /*non_blocking=*/is_pinned_);
}

// Works on any device, and keeps the autograd graph of computed rows.
Flat RowsOutput::gathered() const {
  Flat together;
  together.root = computed_[0].result.root;
  std::vector<std::int64_t> place_of(rows_);
  std::int64_t end = 0;
  for (const std::size_t row : stored_) place_of[row] = end++;
  for (const Computed& computed : computed_) {
    for (const std::int64_t row : computed.rows) place_of[static_cast<std::size_t>(row)] = end++;
  }
  for (const auto& [row, same_as] : repeated_) place_of[row] = place_of[same_as];
  for (std::size_t i = 0; i < computed_[0].result.tensors.size(); ++i) {
    // The last result is the module's, if the module ran: rows that were resident on a device were
    // added before it.
    const at::Device device = computed_.back().result.tensors[i].device();
    std::vector<at::Tensor> parts;
    const TensorLayout layout = row_layout(i);
    const DimOrder rows_first = rows_first_order(layout);
    if (!stored_.empty()) {
      const std::vector<std::int64_t> stored(stored_.begin(), stored_.end());
      parts.push_back(is_pinned_ ? select_rows(sent(block_[i], device), stored)
                                 : select_rows(block_[i], stored).to(device));
    }
    for (const Computed& computed : computed_) {
      const at::Tensor part = in_memory_order(computed.result.tensors[i], rows_first);
      parts.push_back(part.device() == device ? part : part.to(device));
    }
    const at::Tensor rows = select_rows(parts.size() == 1 ? parts[0] : at::cat(parts), place_of);
    together.tensors.push_back(in_batch_order(rows, layout));
  }
  return together;
}

const std::vector<std::size_t>& RowsOutput::constants() const {
  return stored_.empty() ? constants_ : layout_->row_marks().constants;
}

// Replaces the rows of each constant by the constant. Returns false when they differ.
bool RowsOutput::take_constants(Flat& rows) const {
  for (const std::size_t i : constants()) {
    at::Tensor& tensor = rows.tensors[i];
    if (tensor.size(0) == 0) return false;
    const at::Tensor first = tensor.select(0, 0);
    const Flat all{{}, {tensor}, {}};
    const Flat expected{{}, {first.expand_as(tensor)}, {}};
    if (!difference(all, expected, tolerance_of_constant(tensor)).empty()) return false;
    tensor = first;
  }
  return true;
}

std::optional<Flat> RowsOutput::together(std::optional<at::Device> input_device) {
  auto rows = rows_together(input_device);
  if (rows.has_value() && !take_constants(*rows)) return std::nullopt;
  return rows;
}

std::optional<Flat> RowsOutput::rows_together(std::optional<at::Device> input_device) {
  // Without a stored row the block holds nothing, and computed rows need not fit it.
  if (stored_.empty()) {
    layout_ = nullptr;
    block_.clear();
  } else {
    widen();
  }
  if (!singles_.empty()) return std::nullopt;
  if (computed_.empty()) {
    OrdinaryTensors ordinary;
    copy_repeated();
    Flat together{layout_->root(), block_, {}};
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const TensorLayout& row = layout_->tensors()[i];
      at::Tensor& tensor = together.tensors[i];
      if (row.is_beside_input && input_device.has_value()) tensor = sent(tensor, *input_device);
      if (row.dim_order.empty() && row.batch_place == 0) continue;
      const TensorLayout layout = row_layout(i);
      tensor = reordered(tensor, rows_first_order(layout), batch_order(layout));
    }
    return together;
  }
  // A single result for all rows in order is returned unchanged, whatever it is.
  if (computed_.size() == 1 && computed_[0].rows.size() == rows_ &&
      std::is_sorted(computed_[0].rows.begin(), computed_[0].rows.end())) {
    return std::move(computed_[0].result);
  }
  if (!do_computed_fit()) return std::nullopt;
  const bool are_on_cpu = std::all_of(computed_.begin(), computed_.end(),
                                      [](const Computed& one) { return is_on_cpu(one.result); });
  return are_on_cpu ? copied_on_cpu() : gathered();
}

std::vector<Flat> RowsOutput::apart(std::optional<at::Device> input_device) {
  std::vector<Flat> rows(rows_);
  const auto add = [&](std::size_t row, const Layout& layout, std::size_t i,
                       const at::Tensor& tensor) {
    const bool goes_to_input = layout.tensors()[i].is_beside_input && input_device.has_value();
    rows[row].tensors.push_back(goes_to_input ? tensor.to(*input_device) : tensor);
  };
  for (const Single& single : singles_) {
    rows[single.row].root = single.layout->root();
    for (std::size_t i = 0; i < single.tensors.size(); ++i) {
      add(single.row, *single.layout, i, single.tensors[i]);
    }
  }
  for (const std::size_t row : stored_) {
    rows[row].root = layout_->root();
    OrdinaryTensors ordinary;
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const at::Tensor copy = copy_to_store(block_[i].select(0, static_cast<std::int64_t>(row)),
                                            cache::StoredDtype::kKeep);
      restore_logical_order(copy, layout_->tensors()[i].dim_order);
      add(row, *layout_, i, copy);
    }
  }
  for (const Computed& computed : computed_) {
    for (std::size_t k = 0; k < computed.rows.size(); ++k) {
      Flat& row = rows[static_cast<std::size_t>(computed.rows[k])];
      row.root = computed.result.root;
      for (const at::Tensor& tensor : computed.result.tensors) {
        row.tensors.push_back(tensor.select(0, static_cast<std::int64_t>(k)));
      }
    }
  }
  for (const auto& [row, same_as] : repeated_) {
    rows[row] = rows[same_as];
    const c10::InferenceMode no_inference(false);  // so that a graph continues through the copy
    for (at::Tensor& tensor : rows[row].tensors) tensor = copy_of(tensor);
  }
  return rows;
}

}  // namespace modcache::tensor
