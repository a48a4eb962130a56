// SPDX-License-Identifier: Apache-2.0
//
// Identity: the fingerprint of a TorchScript module for one of its methods. It is asked for on
// every call, and stays the same as long as nothing that the method reads has changed.
//
// There is one Identity per module object and method in a process; identity_of() finds it.
// Thread-safe; usable in a forked child.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "module/code/source.h"
#include "module/identity/inventory.h"

namespace modcache::module {

class Identity {
 public:
  Identity(const ObjectPtr& module, std::string method);
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  struct Fingerprint {
    std::string text;  // 32 hexadecimal digits; empty when there is none
    // Set when there is none: the attribute, and what is wrong with it.
    std::string why_not_hashable;
    std::shared_ptr<const TensorWatch> weights;
    // The state that the fingerprint is of, for changed_since() after a run.
    std::shared_ptr<const Inventory> before;
  };
  // Compares the module with its last known state, and hashes only what has changed since.
  Fingerprint fingerprint(const ObjectPtr& module);

  // Makes the next fingerprint hash everything anew.
  void refresh() { refreshes_.fetch_add(1, std::memory_order_acq_rel); }

  // Returns the module's current state, for changed_since() after a run. Hashes nothing but tensors
  // that count no versions (those made under inference mode).
  std::shared_ptr<const Inventory> observe(const ObjectPtr& module);
  static std::optional<std::string> changed_since(const Inventory& before, const ObjectPtr& module);

  // The parts of the fingerprint; nothing when the module has none.
  struct Pieces {
    std::map<std::string, Digest128> functions;
    std::vector<Inventory::AttributeDigest> attributes;
  };
  std::optional<Pieces> pieces(const ObjectPtr& module);

  // The reason why the last result was not stored, for explain().
  struct Refusal {
    std::string cause;  // "grad", "impure", "type"; empty: it was stored
    std::string message;
    std::string scope;  // of that call
  };
  Refusal refusal() const;
  void note_refusal(const std::string& cause, const std::string& message, const std::string& scope);

  // Looks at the tensors that the method reads or writes.
  tensor::RequiringGrad requiring_grad(const ObjectPtr& module);

  // Returns whether the last run under this pattern gave a result that requires grad. Then the
  // module is run without a fingerprint first, as in training each step would otherwise hash all
  // weights.
  bool gave_grad(std::uint64_t pattern) const;
  void note_gave_grad(std::uint64_t pattern, bool gave);

 private:
  struct State;
  using StatePtr = std::shared_ptr<const State>;
  StatePtr state() const;
  std::shared_ptr<const Source> source_of(const ObjectPtr& module, const State* before) const;
  StatePtr hashed(const ObjectPtr& module);
  StatePtr renew(const ObjectPtr& module, TensorWatch::Hashing hashing);
  // Returns the known state if it is still true of the module; null when something changed.
  StatePtr current(const ObjectPtr& module, Inventory::Depth depth) const;

  const std::string method_;
  const c10::ClassTypePtr type_;
  mutable Mutex mutex_;
  StatePtr state_ MODCACHE_GUARDED_BY(mutex_);
  Refusal refusal_ MODCACHE_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> refreshes_{0};
  std::atomic<std::uint64_t> grad_pattern_{0};  // the last one that gave grad; 0: none
  std::uint64_t fork_registration_;

  friend std::shared_ptr<Identity> identity_of(const ObjectPtr& module, const std::string& method);
};

// Finds or makes the Identity. REQUIRES: the module has `method`.
std::shared_ptr<Identity> identity_of(const ObjectPtr& module, const std::string& method);

// Makes the next fingerprint hash everything anew, for all methods of `module` that were asked for.
void refresh_identities(const ObjectPtr& module);

}  // namespace modcache::module
