// SPDX-License-Identifier: Apache-2.0
//
// The library's half of caching an eager Python module. Python walks the module, hashes its code
// and plain attributes, and runs it; rules and storage are here, and watch/watch.h has its tensors.
// Thread-safe, but a Run is for one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "module/call/call.h"
#include "module/call/rows_call.h"

namespace modcache::module {

// A call between its two halves, which Python holds. When it is destroyed before it was finished or
// abandoned, it abandons itself.
struct Run : torch::CustomClassHolder {
  Run(CallParts parts, std::string key) : call(std::move(parts), std::move(key)) {}
  Call call;
};
struct RowsRun : torch::CustomClassHolder {
  RowsRun(CallParts parts, BatchKeys keys) : call(std::move(parts), std::move(keys)) {}
  RowsCall call;
};

// The next step for Python: take the value; run the module and finish; or just run it.
enum class Next : std::int64_t { kReturn = 0, kRunAndFinish = 1, kJustRun = 2 };

struct Begun {
  Next next = Next::kJustRun;
  at::IValue value;             // kReturn; structured ones are tagged (tensor/tree.h)
  c10::intrusive_ptr<Run> run;  // kRunAndFinish
};
struct RowsBegun {
  Next next = Next::kJustRun;
  std::vector<std::int64_t> rows;   // kRunAndFinish: the rows to run first
  c10::intrusive_ptr<RowsRun> run;  // kReturn: eager_rows() gives the rows; kRunAndFinish
};

// Begins a call. `scope` is empty when the module could not be identified or is expected to return
// a graph; its result is then judged and counted, but not stored. `params_grad_pattern` is a hash
// of which tensors of the module require grad; 0 when none does. Throws under strict=true where a
// rule forbids caching.
Begun begin_eager(CallParts parts, const std::string& key, const at::IValue& input,
                  std::int64_t params_grad_pattern);
// Throws when the input does not have as many rows as there are keys.
RowsBegun begin_eager_rows(CallParts parts, BatchKeys keys, const at::IValue& input,
                           std::int64_t params_grad_pattern);

// All rows together, tagged; or, where they do not fit together, each by itself.
struct TaggedRows {
  at::IValue together;
  std::optional<std::vector<at::IValue>> apart;
};
TaggedRows eager_rows(RowsCall& call);

}  // namespace modcache::module
