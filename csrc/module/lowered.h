// SPDX-License-Identifier: Apache-2.0
//
// A lowered call (lowering.h): its graph runs the module where that is needed, and asks these what
// to do. Each is made by an operator of the graph and used by one thread at a time; let go of, as
// when the module raises, it abandons itself. All throw for callers' mistakes.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/batch_keys.h"
#include "module/call.h"
#include "module/declared.h"
#include "module/lowered_identity.h"
#include "module/rows_call.h"

namespace modcache::module {

// A value on its way into one of these. TorchScript takes an operator with effects to write to all
// values that it is given, and so to all weights, which freezing would then not make constants;
// what is held, it does not see.
struct Held final : torch::CustomClassHolder {
  explicit Held(at::IValue held) : value(std::move(held)) {}
  const at::IValue value;
};

// What the graph says of a call.
struct LoweredSite {
  std::string scope;         // empty: the fingerprint
  LoweredIdentity identity;  // of the module
  std::string method;
  std::string class_name;
  Declared declared;
};

// What is common to both forms.
class LoweredCallBase : public torch::CustomClassHolder {
 public:
  // Of the module's attributes around the run: state_of().
  struct States {
    std::int64_t before;
    std::int64_t after;
  };

 protected:
  LoweredCallBase(LoweredSite site, at::IValue input)
      : site_(std::move(site)), input_(std::move(input)) {}

  // What the call is to be looked up under; nothing when it is to be run uncached, which is counted
  // then, once for each of its rows.
  std::optional<CallParts> prepare(tensor::Per per, std::int64_t rows) const;
  // What `fingerprint` says of the module right before a run, which may come long after the call.
  // `replaceable`: attributes in whose place others may come to lie; they are kept meanwhile, for
  // a new tensor at the address of an old one would pass for it.
  void note_begin(const std::string& fingerprint, const at::IValue& replaceable);
  RunFacts facts_of(const tensor::Flat& result, const States& states);
  void check_wanted(const at::IValue& result) const {
    site_.declared.check_wanted(result.isTensor(), result.tagKind());
  }

  LoweredSite site_;
  at::IValue input_;

 private:
  bool is_another_ = false;
  std::shared_ptr<const WatchedContents> weights_;
  // What all runs of a call are stored under is what the module was before the first of them.
  std::optional<std::int64_t> first_state_;
  std::optional<std::vector<at::Tensor>> kept_;
};

// One key:
//     call = LoweredCall(site, input, key)
//     if (call.is_hit()) call.hit()
//     else { call.begin_run(...); call.finish(<run the module on the input>, ...) }
class LoweredCall final : public LoweredCallBase {
 public:
  LoweredCall(LoweredSite site, at::IValue input, const std::string& key);

  bool is_hit() const { return hit_.has_value(); }
  // Once. REQUIRES: is_hit().
  at::IValue hit() { return *std::move(hit_); }
  void begin_run(const std::string& fingerprint, const at::IValue& replaceable);
  void finish(const at::IValue& result, const States& states);

 private:
  std::unique_ptr<Call> call_;  // null: run uncached
  std::optional<at::IValue> hit_;
};

// One key per row:
//     call = LoweredRowsCall(site, input, keys)
//     while (call.must_run()) call.finish_run(<run the module on call.begin_run(...)>, ...)
//     call.is_last_run() ? <what that run returned> : call.rows()
class LoweredRowsCall final : public LoweredCallBase {
 public:
  LoweredRowsCall(LoweredSite site, at::IValue input, BatchKeys keys);

  bool must_run() const { return must_run_; }
  // The rows of the input to run the module on.
  at::IValue begin_run(const std::string& fingerprint, const at::IValue& replaceable);
  void finish_run(const at::IValue& result, const States& states);
  // Whether the last run was that of all rows: its result is of the module's own type.
  bool is_last_run() const { return is_last_run_; }
  // Once. REQUIRES: !must_run(), !is_last_run().
  Rows rows() { return *std::move(rows_); }

 private:
  void go_on();

  std::unique_ptr<RowsCall> call_;  // null: run uncached
  bool must_run_ = true;
  bool is_last_run_ = false;
  std::vector<std::int64_t> running_;
  std::optional<Rows> rows_;
};

}  // namespace modcache::module
