// SPDX-License-Identifier: Apache-2.0
#include "module/exported/probed_call.h"

#include <chrono>
#include <utility>

#include "base/hash.h"
#include "module/call/learned_padding.h"
#include "tensor/input.h"
#include "tensor/input_sampler.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::module {

using Clock = std::chrono::steady_clock;

namespace {

// A program was recorded with row-major results, whatever the order of an entry's dimensions is.
std::vector<at::Tensor> row_major(std::vector<at::Tensor> tensors) {
  const tensor::OrdinaryTensors ordinary;
  for (at::Tensor& tensor : tensors) tensor = tensor.contiguous();
  return tensors;
}

}  // namespace

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  tensor::OrdinaryTensors ordinary;
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  }
  return copies;
}

bool Expected::fits(const tensor::Node& found, const std::vector<at::Tensor>& tensors) const {
  std::string dtypes_found;
  std::vector<std::int64_t> sizes_found;
  for (const at::Tensor& tensor : tensors) {
    dtypes_found += tensor::dtype_name(tensor.scalar_type());
    dtypes_found += ':' + std::to_string(tensor.dim()) + ',';
    sizes_found.insert(sizes_found.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return found == root && dtypes_found == dtypes && sizes_found == sizes;
}

bool ProbedCall::look_up() {
  MutexLock lock(mutex_);
  return look_up_locked();
}

bool ProbedCall::is_bypassed() {
  MutexLock lock(mutex_);
  return whole_ != nullptr ? whole_->is_bypassed() : rows_ != nullptr && rows_->is_bypassed();
}

std::optional<std::vector<at::Tensor>> ProbedCall::take() {
  MutexLock lock(mutex_);
  if (is_used_ && !look_up_locked()) return std::nullopt;
  is_used_ = true;
  return std::exchange(found_, {});
}

std::vector<at::Tensor> ProbedCall::complete(const std::vector<at::Tensor>& values) {
  MutexLock lock(mutex_);
  // A second question with this handle: the first answer may have been stored meanwhile.
  if (is_used_ && look_up_locked()) return std::exchange(found_, {});
  is_used_ = true;
  const tensor::Flat flat{expected_.root, values, {}};
  if (!expected_.fits(flat.root, values) || !has_padding_of(flat)) {
    const std::int64_t rows = ids_.has_value() ? ids_->numel() : 1;
    refuse(parts_, *cache::Cache::instance().session(), cache::Counter::kBypassedType, rows,
           "other result",
           parts_.who() +
               " is not cached: it returned other dtypes or sizes than when the "
               "program was recorded");
    return copies_of(values);
  }
  if (whole_ == nullptr) return complete_rows(flat);
  whole_->begin_run(started_);
  whole_->finish_run(flat, {});
  return copies_of(values);
}

bool ProbedCall::look_up_locked() {
  const bool is_found = ids_.has_value() ? find_rows() : find_whole();
  started_ = Clock::now();
  return is_found;
}

// Returns whether the result is as long as the batch where it was seen to be.
bool ProbedCall::has_padding_of(const tensor::Flat& result) const {
  return !parts_.padding.has_value() ||
         has_padded_dims(result, expected_.padded_dims, parts_.padding->longest);
}

std::uint64_t ProbedCall::question() const {
  Xxh3Hasher hasher;
  const std::string arithmetic = parts_.arithmetic_state();
  for (const std::string* const part :
       {&parts_.scope, &parts_.method, &parts_.input.arguments, &parts_.input.signature,
        &arithmetic, &key_, &expected_.dtypes}) {
    hasher.add(*part);
  }
  auto& cache = cache::Cache::instance();
  hasher.add(static_cast<std::uint64_t>(cache.mode()));
  hasher.add(cache.session()->settings().name_space);
  hasher.add(parts_.input.device.has_value() ? parts_.input.device->str() : "");
  add_padding(hasher);
  add_input(hasher);
  for (const std::int64_t size : expected_.sizes) hasher.add(static_cast<std::uint64_t>(size));
  if (ids_.has_value()) hasher.update(ids_->const_data_ptr(), ids_->nbytes());
  return hasher.digest().low;
}

void ProbedCall::add_padding(Xxh3Hasher& hasher) const {
  if (!parts_.padding.has_value()) return;
  hasher.add(static_cast<std::uint64_t>(parts_.padding->longest));
  hasher.add(tensor::bits_of(parts_.padding->value));
  for (const std::int64_t length : parts_.padding->lengths) {
    hasher.add(static_cast<std::uint64_t>(length));
  }
}

// Adds a sample of the input, as one key with two inputs is two questions.
void ProbedCall::add_input(Xxh3Hasher& hasher) const {
  const auto session = cache::Cache::instance().session();
  const auto per = ids_.has_value() ? tensor::Per::kRow : tensor::Per::kCall;
  const tensor::InputSampler input = sampler_of(parts_, per);
  if (session->settings().match != cache::Match::kInput || input.is_costly()) return;
  const std::int64_t rows = ids_.has_value() ? ids_->numel() : 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    hasher.add(session->sample_to_keep(input, static_cast<std::size_t>(row)).bytes());
  }
}

// No lead is kept between lookup and result: the program may ask for the same rows a second time
// before it runs the module for the first.
bool ProbedCall::find_whole() {
  whole_ = std::make_unique<Call>(parts_, key_);
  const auto hit = whole_->lookup();
  whole_->abandon();
  if (hit == nullptr) return false;
  found_ = row_major(hit->hand_out(parts_.input.device));
  if (expected_.fits(hit->root(), found_)) return true;
  found_.clear();
  whole_->reject_hit();
  return false;
}

bool ProbedCall::find_rows() {
  rows_ = std::make_unique<RowsCall>(parts_,
                                     BatchKeys::of_ids(ids_->const_data_ptr<std::int64_t>(),
                                                       static_cast<std::size_t>(ids_->numel())));
  rows_->cannot_check();
  if (are_rows_proven_) rows_->trust_rows();
  if (parts_.padding.has_value()) rows_->trust_padding(expected_.padded_dims);
  auto missing = rows_->next_rows();
  rows_->abandon();
  if (rows_->is_bypassed()) return false;
  if (!missing.has_value()) {
    auto together = rows_->together();
    if (together.has_value() && expected_.fits(together->root, together->tensors)) {
      found_ = row_major(std::move(together->tensors));
      return true;
    }
    rows_->reject_hits();
    missing = rows_->next_rows();
  }
  missing_ = *std::move(missing);
  return false;
}

std::vector<at::Tensor> ProbedCall::complete_rows(const tensor::Flat& flat) {
  const auto elapsed = Clock::now() - started_;
  std::optional<std::vector<std::int64_t>> rows = missing_;
  while (rows.has_value()) {
    tensor::Flat part{flat.root, {}, {}};
    for (const at::Tensor& tensor : flat.tensors) {
      part.tensors.push_back(rows_->is_whole_input(*rows) ? tensor
                                                          : tensor::select_rows(tensor, *rows));
    }
    // The whole input was run, so these rows get their share of the time.
    const auto share = elapsed * static_cast<std::int64_t>(rows->size()) / ids_->numel();
    rows_->begin_run(Clock::now() - share);
    rows_->finish_run(std::move(part), {});
    rows = rows_->next_rows();
    rows_->abandon();
  }
  auto together = rows_->together();
  const bool fits = together.has_value() && expected_.fits(together->root, together->tensors);
  if (!fits) return copies_of(flat.tensors);
  // The outputs of an operator must not share memory with its inputs.
  for (std::size_t i = 0; i < flat.tensors.size(); ++i) {
    if (together->tensors[i].is_alias_of(flat.tensors[i])) return copies_of(together->tensors);
  }
  return row_major(std::move(together->tensors));
}

}  // namespace modcache::module
