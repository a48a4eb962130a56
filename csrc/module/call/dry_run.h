// SPDX-License-Identifier: Apache-2.0
//
// DryRun: the result of a dry run of a call, which neither runs the module nor waits, counts or
// stores. For Python's explain().
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/value.h"
#include "module/call/call_keys.h"
#include "module/call/call_parts.h"

namespace modcache::module {

struct DryRun {
  std::string why_not_cacheable;  // the reason that lies in the input; empty: it may be cached
  // Something requires grad, and it is not known yet whether the result does, so the call would run
  // the module.
  bool grad_is_unknown = false;
  // One for each key: what it has stored, and the signature of its input, of its row where it has
  // one. Signatures are absent where the input may not be cached.
  std::vector<std::optional<cache::EntryInfo>> entries;
  std::vector<std::string> signatures;
};

// `rows` has the row of the input for each key; it is empty where the one key is for the whole
// input. `params_grad_pattern` is the argument of begin_eager(). REQUIRES: the input has `rows`.
DryRun dry_run(CallParts parts, const std::vector<std::string_view>& keys,
               const std::vector<std::size_t>& rows, const at::IValue& input,
               std::uint64_t params_grad_pattern);

}  // namespace modcache::module
