// SPDX-License-Identifier: Apache-2.0
//
// Call: one call of a cached module, with one key for its whole input or one key for each row. It
// looks the call up, and gives the value or a Run (run.h) of what is missing:
//
//     Call call(parts, keys);
//     Begun begun = call.begin();
//     if (begun.value) return <the value>;
//     if (!begun.run) return <the module, run without the cache>;
//     ... makes the run ...
//
// Scripted and eager modules, lowered graphs, recorded programs, lazy files and datasets all call
// this. Used by one thread; waits for other threads that run the same keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "cache/cache.h"
#include "module/call/call_keys.h"
#include "module/call/call_parts.h"
#include "tensor/input_sampler.h"
#include "tensor/tree.h"

namespace modcache::module {

class Run;

// A lone tensor, a structured value, or rows that do not fit together. It is the caller's.
using CallValue = std::variant<at::Tensor, tensor::Flat, std::vector<tensor::Flat>>;

struct Begun {
  std::optional<CallValue> value;
  // Both empty: the call bypasses the cache. It was counted, and is to be run uncached.
  std::unique_ptr<Run> run;
};

class Call {
 public:
  // Borrows both, and moves them into a Run where there is one. REQUIRES: the mode is not off;
  // parts.input is set, and for keys of rows has that many rows.
  Call(CallParts& parts, CallKeys& keys);
  ~Call();

  Begun begin();
  // The value of a call whose run this caller cannot make; nullopt: not all of it is in memory or
  // in the directory, and begin() tells the rest. Counts the hits, and nothing else.
  std::optional<CallValue> find_stored();
  // Call it when the value of begin() has another type than the method declares: the module is run,
  // and its result replaces what is stored.
  std::unique_ptr<Run> reject(const std::string& why_apart = "");

 private:
  friend class Run;

  bool is_plain() const;
  cache::Keys lookup_keys(const tensor::InputSampler& input) const;
  struct LookedUp {
    LookedUp(cache::Cache& cache, cache::Keys asked, const cache::LookupOptions& options)
        : keys(std::move(asked)), found(cache.lookup(keys, options)) {}

    cache::Keys keys;
    cache::Found found;
    std::optional<CallValue> value;  // where all of it was found; counted as a hit
  };
  // The result borrows `input`.
  LookedUp look_up(const tensor::InputSampler& input, const cache::LookupOptions& options) const;
  std::optional<CallValue> value_of(const cache::Keys& keys, cache::Found& found) const;
  std::optional<CallValue> plain_row_in_memory(const cache::Found& found) const;

  CallParts& parts_;
  CallKeys& keys_;
  const bool grad_is_unknown_;
  std::unique_ptr<Run> ended_;  // the run without a step whose value begin() gave
};

// Returns what reads the values of a call's input. `parts` must outlive it.
tensor::InputSampler sampler_of(const CallParts& parts, tensor::Per per);

// Returns how the keys of a call are looked up, whoever runs what is missing.
cache::LookupOptions lookup_options(const CallParts& parts, const CallKeys& keys);
// Sets what all keys of a call have in common.
void describe(cache::Keys& asked, const CallParts& parts, const CallKeys& keys);

CallValue call_value(tensor::Flat flat);
// Returns a stored whole value, for a call whose input is on this device.
CallValue handed_out(const cache::Entry& entry, std::optional<at::Device> device);
// Returns whether a batch is assembled in page-locked memory.
bool is_output_pinned(const CallParts& parts);

}  // namespace modcache::module
