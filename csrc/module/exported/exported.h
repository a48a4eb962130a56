// SPDX-License-Identifier: Apache-2.0
//
// A cached module inside a program that torch.export or torch.compile recorded. Such a program has
// tensors and no modules, so the call is three functions of tensors, between which the program
// branches:
//
//     handle = probe(call)              looks up; the handle holds what was found
//     if handle >= 0: fetch(handle)     hands it out
//     else:           put(handle, run)  adds the module's result for the whole input
//
// The rest of the call is constant, and was written down when it was recorded: a RecordedCall. A
// handle is a number in a tensor whose storage keeps alive what was found. Copies of the number
// work as long as that storage lives. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "module/call/call.h"
#include "module/call/rules.h"
#include "module/call/run.h"
#include "tensor/input.h"
#include "tensor/value_header.h"

namespace modcache::module {

// How the scope depends on the weights.
enum class ScopeKind : char {
  kNamed = 'n',  // it does not; the caller is responsible
  kBaked = 'b',  // it is the scope of the weights with `digest`; others get a scope derived from it
  kEager = 'e',  // `scope` is the digest of an eager module's structure, as Python hashes it
};

// Rows that have lengths of their own, as they were seen before the call was recorded: a program
// cannot run a row once more.
struct RecordedPadding {
  bool has_lengths = false;  // the tensor beside the input has lengths; otherwise it is a mask
  double value = 0;
  std::vector<tensor::DimSet> dims;  // the padded dimensions of each tensor of the result
  std::string digest;     // of the weights then; empty: the scope stands for the module with any
  std::string signature;  // of the input then (InputSummary)
};

struct RecordedCall {
  ScopeKind scope_kind = ScopeKind::kNamed;
  std::string scope;
  std::string digest;  // of the weights when the call was recorded
  std::string method;
  std::string class_name;
  std::string key;  // empty: one per row
  tensor::InputForm input;
  bool is_compiled = false;  // by torch.compile, which compiles the autocast state into the program
  std::string arithmetic;    // tensor::arithmetic_state() then
  std::string dtypes;  // of the result's tensors: "float32:2,": a name, its number of dimensions
  tensor::Node root;   // the structure of the result; usually a lone tensor
  // An eager check run showed that results consist of rows (call/row_proof.h). Otherwise the
  // directory may know.
  bool are_rows_proven = false;
  std::optional<RecordedPadding> padding;

  // Parses the text that a program carries: fields, each preceded by its length. Throws for any
  // other text.
  static RecordedCall parse(const std::string& text);
};

struct ExportedCall {
  const std::optional<at::Tensor>& ids;  // nothing: the recorded key is used
  const std::vector<at::Tensor>& input;
  const std::vector<at::Tensor>& weights;  // the module's; empty where the scope is named
  const std::vector<std::int64_t>& sizes;  // of the result's tensors, one after another
  const RecordedCall& recorded;
  at::Tensor mask = {};  // or lengths; undefined where the recorded call has no padding
};

// Looks everything up. The handle is negative when the module has to run. Throws for callers'
// mistakes: ids, a mask or lengths that do not match the rows.
at::Tensor probe(const ExportedCall& call);

// Returns the handle of a call that is not cached because the cache failed. Counts it in `errors`
// and logs once.
at::Tensor no_handle(const std::string& why);

// Returns the result. Throws for a handle that holds no result, or no longer does.
std::vector<at::Tensor> fetch(const at::Tensor& handle);

// Stores the missing part of `values`, the module's result, and returns the result: copies in which
// rows that were found are the stored ones. Throws under strict=true where a rule forbids storing.
std::vector<at::Tensor> put(const at::Tensor& handle, const std::vector<at::Tensor>& values);

// SeenPadding holds what this process has seen of a module whose rows have their own lengths.
struct SeenPadding {
  std::vector<tensor::DimSet> dims;  // as RecordedPadding::dims
  std::string signature;             // as RecordedPadding::signature
  std::string why_not;               // they may not be recorded; empty: they may
};
// `arguments`: those of an InputForm. `arithmetic`: tensor::arithmetic_state().
SeenPadding seen_padding(const std::string& scope, const std::string& method,
                         const std::string& arguments, const std::string& arithmetic);

// Returns what this process or the directory knows of the rows of such a call.
struct SeenRows {
  bool are_proven = false;
  std::string why_not;  // empty: they were not refuted
};
SeenRows seen_rows(const std::string& scope, const std::string& method,
                   const std::string& arguments, const std::string& arithmetic);

// The digest over `tensors` that RecordedCall::digest is compared with.
std::string weights_digest(const std::vector<at::Tensor>& tensors);

// ProbedCall: the call that a handle (exported.h) holds, between its lookup and its result. A
// compiler may make the program ask twice with one handle: what was taken already is then looked up
// again. Thread-safe.
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
  // `weights`: the tensors that parts.weights watches.
  ProbedCall(CallParts parts, std::vector<at::Tensor> weights, std::string key,
             std::optional<at::Tensor> ids, Expected expected, bool are_rows_proven)
      : parts_(std::move(parts)),
        weights_(std::move(weights)),
        key_(std::move(key)),
        ids_(std::move(ids)),
        expected_(std::move(expected)),
        are_rows_proven_(are_rows_proven) {}

  // A hash of the question. Calls with equal hashes may answer each other.
  std::uint64_t question() const;

  // Returns whether everything was found.
  bool look_up() MODCACHE_EXCLUDES(mutex_);
  // After look_up(): whether the call bypasses the cache.
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
  bool accept(const CallValue& value) MODCACHE_REQUIRES(mutex_);

  const CallParts parts_;
  const std::vector<at::Tensor> weights_;
  const std::string key_;
  const std::optional<at::Tensor> ids_;
  const Expected expected_;
  const bool are_rows_proven_;

  Mutex mutex_;
  bool is_used_ MODCACHE_GUARDED_BY(mutex_) = false;
  Run::Time started_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<at::Tensor> found_ MODCACHE_GUARDED_BY(mutex_);
  std::unique_ptr<Run> run_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::module
