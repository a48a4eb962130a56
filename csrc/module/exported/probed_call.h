// SPDX-License-Identifier: Apache-2.0
//
// ProbedCall: the call that a handle (exported.h) holds, between its lookup and its result. A
// compiler may make the program ask twice with one handle: what was taken already is then looked up
// again. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "module/call/call.h"
#include "module/call/module_run.h"
#include "module/call/rows_call.h"
#include "tensor/value_header.h"

namespace modcache::module {

// Returns ordinary tensors with memory of their own, whatever mode of torch the program runs in.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);

// The form that a result must have, as the program was compiled for it.
struct Expected {
  std::string dtypes;
  std::vector<std::int64_t> sizes;
  tensor::Node root;
  // Where rows have lengths of their own, for each tensor.
  std::vector<tensor::DimSet> padded_dims = {};

  bool fits(const tensor::Node& found, const std::vector<at::Tensor>& tensors) const;
};

class ProbedCall {
 public:
  ProbedCall(CallParts parts, std::string key, std::optional<at::Tensor> ids, Expected expected,
             bool are_rows_proven)
      : parts_(std::move(parts)),
        key_(std::move(key)),
        ids_(std::move(ids)),
        expected_(std::move(expected)),
        are_rows_proven_(are_rows_proven) {}

  // A hash of the question. Calls with equal hashes may answer each other.
  std::uint64_t question() const;

  // Returns whether everything was found.
  bool look_up() MODCACHE_EXCLUDES(mutex_);
  // After look_up(): as OpenCall::is_bypassed().
  bool is_bypassed() MODCACHE_EXCLUDES(mutex_);
  // Returns what was found; nothing when it is no longer there.
  std::optional<std::vector<at::Tensor>> take() MODCACHE_EXCLUDES(mutex_);
  // Stores the missing part of `values`, the module's result, and returns the result: copies in
  // which rows that were found are the stored ones. Throws under strict=true.
  std::vector<at::Tensor> complete(const std::vector<at::Tensor>& values) MODCACHE_EXCLUDES(mutex_);

 private:
  void add_padding(Xxh3Hasher& hasher) const;
  void add_input(Xxh3Hasher& hasher) const;
  bool has_padding_of(const tensor::Flat& result) const;
  bool look_up_locked() MODCACHE_REQUIRES(mutex_);
  bool find_whole() MODCACHE_REQUIRES(mutex_);
  bool find_rows() MODCACHE_REQUIRES(mutex_);
  std::vector<at::Tensor> complete_rows(const tensor::Flat& flat) MODCACHE_REQUIRES(mutex_);

  const CallParts parts_;
  const std::string key_;
  const std::optional<at::Tensor> ids_;
  const Expected expected_;
  const bool are_rows_proven_;

  Mutex mutex_;
  bool is_used_ MODCACHE_GUARDED_BY(mutex_) = false;
  ModuleRun::Time started_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<at::Tensor> found_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<std::int64_t> missing_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<Call> whole_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<RowsCall> rows_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::module
