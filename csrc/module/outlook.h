// SPDX-License-Identifier: Apache-2.0
//
// Outlook: what a call would find, without running the module, waiting, counting or storing. For
// Python's explain().
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/value.h"
#include "module/batch_keys.h"
#include "module/module_run.h"

namespace modcache::module {

struct Outlook {
  std::string why_not_cacheable;  // of the input; empty: it may be cached
  std::string signature;          // of the input
  // Something requires grad, and it is not known yet whether the result does: the module is run.
  bool grad_is_unknown = false;
  std::vector<std::optional<cache::Sighting>> entries;  // one for each key
};

// `rows`: of the input, one for each key; empty where the one key is for the whole input.
// `params_grad_pattern`: as begin_eager() takes it.
// Throws for the caller's mistakes in rows.
Outlook look_ahead(CallParts parts, const std::vector<std::string_view>& keys,
                   const std::vector<std::size_t>& rows, const at::IValue& input,
                   std::uint64_t params_grad_pattern);

// What is known of a TorchScript module before it is run.
struct ScriptedOutlook {
  std::uint64_t params_grad_pattern = 0;
  std::int64_t requiring_grad = 0;
  bool gave_grad = false;  // the last run under this pattern did
  std::string refused_for;
  std::string refusal;
  std::string refused_scope;
};
ScriptedOutlook scripted_outlook(const at::IValue& module, const std::string& method,
                                 const at::IValue& input, tensor::Per per);

}  // namespace modcache::module
