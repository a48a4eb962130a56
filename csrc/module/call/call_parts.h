// SPDX-License-Identifier: Apache-2.0
//
// CallParts: what one call of a cached module is looked up under, besides its keys. Plain values.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "module/call/current_cache.h"
#include "module/watch/tensor_watch.h"
#include "tensor/input.h"
#include "tensor/row_padding.h"

namespace modcache::module {

struct CallParts {
  // The call uses this cache, its present settings and its present mode from its start to its end.
  explicit CallParts(const cache::CachePtr& of_cache = current_cache())
      : CallParts(of_cache, of_cache->mode()) {}
  CallParts(cache::CachePtr of_cache, cache::Mode in_mode)
      : cache(std::move(of_cache)), configuration(cache->configuration()), mode(in_mode) {}

  cache::CachePtr cache;
  cache::ConfigurationPtr configuration;
  cache::Mode mode;

  std::string scope;  // final: the fingerprint where the caller gave none; empty: not known
  std::string method;
  // For messages: the class, or a scripted module that has it.
  std::string class_name;
  const c10::ivalue::Object* module = nullptr;
  // 0: grad mode is off, or neither the module's tensors nor the input's require grad.
  std::uint64_t grad_pattern = 0;
  tensor::InputSummary input;
  // Where rows have lengths of their own. Set before `input`, which depends on it.
  std::optional<tensor::RowPadding> padding;
  // The padded dimensions that were learned elsewhere, so that no run is followed by a trial.
  std::optional<std::vector<tensor::DimSet>> trusted_padding;
  // The input has something that may or may not go row by row, such as a list with as many items as
  // there are rows. No rows are taken out of such an input: all of it is run where one is missing.
  bool runs_whole = false;
  // The results of two rows may differ in shape.
  bool is_ragged = false;
  // Rows with different keys have different texts, which the library does not see.
  bool has_unseen_rows = false;
  bool are_rows_trusted = false;  // proven, as a recorded program carries it
  bool can_check = true;          // the caller can make check runs
  bool has_fixed_shape = false;   // a check run must have the shape of the batch
  // The weights of the module whose fingerprint the scope is. Null when the caller gave the scope,
  // or when RunFacts has them.
  std::shared_ptr<const TensorWatch> weights;
  // tensor::arithmetic_state() at the time when the module was recorded; nullopt: that of this
  // thread.
  std::optional<std::string> arithmetic;

  std::string arithmetic_state() const {
    return arithmetic.has_value() ? *arithmetic : tensor::arithmetic_state();
  }
  std::string name() const;
  std::string who() const { return name() + "." + method; }
  const cache::Settings& settings() const { return configuration->settings; }
  // Returns the context that the entries of the call are found under.
  cache::ContextPtr context(tensor::Per per) const {
    const auto form = per == tensor::Per::kRow ? cache::Form::kRow : cache::Form::kWhole;
    return cache::make_context(
        {settings().name_space, scope, method, form, input.arguments, arithmetic_state()});
  }
};

// Facts of a run that only the code which runs the module can know.
struct RunFacts {
  std::string impure_because;       // the change that the caller saw, or empty
  std::int64_t requiring_grad = 0;  // tensors of the module that require grad, for the message
  // The advice in the message depends on these.
  bool is_scripted = false;
  bool is_training = false;      // any part of the module is in training mode
  bool is_checkpointed = false;  // gradient checkpointing is on in a part of it
  // See CallParts::weights; set for a module that was loaded during the call.
  std::shared_ptr<const TensorWatch> weights = nullptr;
};

}  // namespace modcache::module
