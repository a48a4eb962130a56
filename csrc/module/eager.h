// SPDX-License-Identifier: Apache-2.0
//
// The library's half of caching an eager Python module: Python walks the module, hashes its code
// and plain attributes, and runs it; tensors, rules and storage are dealt with here.
//
// Watches are numbered, and live until they are forgotten. Thread-safe.
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

#include "module/call.h"
#include "module/rows_call.h"

namespace modcache::module {

std::int64_t new_watch();
void forget_watch(std::int64_t watch);

// 32 hexadecimal digits over the contents of `tensors` in their order; hashes what may have
// changed since the last call with this watch. Throws for an unknown watch, and for a tensor
// that cannot be hashed, saying why.
std::string tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors);

// The same for each tensor, 32 hexadecimal digits each.
std::vector<std::string> tensor_digests(std::int64_t watch, const std::vector<at::Tensor>& tensors);

// Whether `tensors` are what the watch saw last, and had this digest. Hashes nothing; false also
// for an unknown watch.
bool still_has_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors,
                      const std::string& digest);

// What the last digest was made of; null before there was one, and for an unknown watch.
std::shared_ptr<const WatchedContents> contents_of_watch(std::int64_t watch);

// The next digest hashes everything anew.
void refresh_watch(std::int64_t watch);

// A call between its halves, as Python holds it. Let go of without being finished or abandoned, it
// abandons itself.
struct Run : torch::CustomClassHolder {
  Run(CallParts parts, std::string key) : call(std::move(parts), std::move(key)) {}
  Call call;
};
struct RowsRun : torch::CustomClassHolder {
  RowsRun(CallParts parts, BatchKeys keys) : call(std::move(parts), std::move(keys)) {}
  RowsCall call;
};

// What Python is to do: take the value; run the module and finish; or just run it.
enum class Next : std::int64_t { kReturn = 0, kRunAndFinish = 1, kJustRun = 2 };

struct Begun {
  Next next = Next::kJustRun;
  at::IValue value;             // kReturn; structured ones are tagged (tensor/tree.h)
  c10::intrusive_ptr<Run> run;  // kRunAndFinish
};
struct RowsBegun {
  Next next = Next::kJustRun;
  std::vector<std::int64_t> rows;   // kRunAndFinish: what to run first
  c10::intrusive_ptr<RowsRun> run;  // kReturn: eager_rows() gives the rows; kRunAndFinish
};

// `scope` empty: the module could not be identified, or is expected to give a graph; its result
// is judged and counted, not kept. `params_grad_pattern`: which tensors of the module require grad,
// hashed; 0 when none does.
Begun begin_eager(CallParts parts, const std::string& key, const at::IValue& input,
                  std::int64_t params_grad_pattern);
// Throws when the input does not have as many rows as there are keys.
RowsBegun begin_eager_rows(CallParts parts, BatchKeys keys, const at::IValue& input,
                           std::int64_t params_grad_pattern);

// All rows together, tagged; or each by itself.
struct TaggedRows {
  at::IValue together;
  std::optional<std::vector<at::IValue>> apart;
};
TaggedRows eager_rows(RowsCall& call);

}  // namespace modcache::module
