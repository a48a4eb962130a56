// SPDX-License-Identifier: Apache-2.0
//
// HeldCall: what a ticket (exported.h) holds: a call of the cache between its question and its
// answer. A compiler may have the program ask twice with one ticket: what was taken is looked up
// again then. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "module/call.h"
#include "module/module_run.h"
#include "module/rows_call.h"
#include "tensor/value_header.h"

namespace modcache::module {

// Ordinary tensors with memory of their own, whatever torch mode the program runs in.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors);

// What a result must be, for the program was compiled for that.
struct Expected {
  std::string dtypes;
  std::vector<std::int64_t> sizes;
  tensor::Node root;

  bool fits(const tensor::Node& found, const std::vector<at::Tensor>& tensors) const;
};

class HeldCall {
 public:
  HeldCall(CallParts parts, std::string key, std::optional<at::Tensor> ids, Expected expected)
      : parts_(std::move(parts)),
        key_(std::move(key)),
        ids_(std::move(ids)),
        expected_(std::move(expected)) {}

  // Hashed: calls with the same one may answer each other.
  std::uint64_t question() const;

  // Whether everything is there.
  bool look_up() MODCACHE_EXCLUDES(mutex_);
  // What was found. Nothing: it is no longer there.
  std::optional<std::vector<at::Tensor>> take() MODCACHE_EXCLUDES(mutex_);
  // Keeps what was missing of `values`, the module's result, and gives the result: copies, in which
  // rows that were found are the stored ones. Throws under strict=true.
  std::vector<at::Tensor> complete(const std::vector<at::Tensor>& values) MODCACHE_EXCLUDES(mutex_);

 private:
  void add_input(Xxh3Hasher& hasher) const;
  bool look_up_locked() MODCACHE_REQUIRES(mutex_);
  bool find_whole() MODCACHE_REQUIRES(mutex_);
  bool find_rows() MODCACHE_REQUIRES(mutex_);
  std::vector<at::Tensor> complete_rows(const tensor::Flat& flat) MODCACHE_REQUIRES(mutex_);

  const CallParts parts_;
  const std::string key_;
  const std::optional<at::Tensor> ids_;
  const Expected expected_;

  Mutex mutex_;
  bool is_used_ MODCACHE_GUARDED_BY(mutex_) = false;
  ModuleRun::Time started_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<at::Tensor> found_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<std::int64_t> missing_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<Call> whole_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<RowsCall> rows_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::module
