// SPDX-License-Identifier: Apache-2.0
//
// The operators of namespace `cache`: each checks its arguments and calls the room below.
// library.cpp has their schemas. Boxed ones take arguments of type Any.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "module/declared.h"

namespace modcache::ops {

using Options = c10::Dict<std::string, std::string>;
using Counts = c10::Dict<std::string, std::int64_t>;

void lookup_or_run(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void lookup_or_run_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void lookup_or_run_any(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void lookup_or_run_any_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void lookup_or_run_file(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void lookup_or_run_file_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Rows as the operator returns them: together, or as a list.
at::IValue value_of(module::Rows rows);
void fingerprint(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void refresh_fingerprint(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void content_key(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void content_keys(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// What the mode allows, for entries that a caller reads and writes itself. There is nothing to run
// here, and so nothing to compare with or to replace: under `refresh` and `verify` lookup finds
// nothing and counts nothing, as under `off`; store stores where the mode may write, contains
// answers where it may read.
std::tuple<bool, at::Tensor> lookup(const std::string& scope, const std::string& key);
at::Tensor store(const std::string& scope, const std::string& key, const at::Tensor& value);
bool contains(const std::string& scope, const std::string& key);

// How many of the distinct keys have an entry of `method`, one value for the key or one row, as the
// calling thread's autocast state addresses it. What only the directory has is brought into memory
// in the background. 0 where the mode may not read.
std::int64_t prefetch(const std::string& scope, const std::vector<std::string>& keys,
                      const std::string& method);
// Of ids, which are keys as texts.
std::int64_t prefetch_ids(const std::string& scope, const at::Tensor& ids,
                          const std::string& method);
// Where memory holds the values of this scope (tensor/placement.h). Returns the place's name:
// "host" for what this machine does not have.
std::string place(const std::string& scope, const std::string& place);

void configure(const Options& options);
Options settings();
void set_mode(const std::string& mode);
std::string mode();  // the effective one of the calling thread
// What the process, the calling thread and the directory say. Where the first two leave nothing,
// the directory is not asked: "on".
std::tuple<std::string, std::string, std::string> mode_levels();
Counts stats();
void reset_stats();
void flush();
std::int64_t clear(const std::string& scope, const std::string& prefix, const std::string& tier);
std::int64_t clear_older_than(const std::string& scope, const std::string& prefix,
                              const std::string& tier, double older_than_s);

// Between the Python shim and the library; names with a leading underscore are not public.

// Combines `mode` into the calling thread's level; returns what leave_mode() takes to undo it, last
// in, first out.
std::int64_t enter_mode(const std::string& mode);
void leave_mode(std::int64_t previous);
// Sets what the tasks of the calling thread leave of the mode (cache/mode.h).
void follow_modes(const std::vector<std::string>& modes);

void content_key_of_parts(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void content_keys_of_parts(const c10::OperatorHandle& op, torch::jit::Stack* stack);
std::int64_t eager_watch();
void eager_unwatch(std::int64_t watch);
std::string eager_tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors);
void eager_refresh(std::int64_t watch);
void optimizer_stepped(const std::vector<at::Tensor>& tensors);
void eager_recall(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void scripted_recall(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Of a function `int()`, which says whether module::may_recall(): where an operator is too slow.
std::int64_t may_recall_address();
void note_scripted(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void forget_scripted(std::int64_t number);
void eager_begin(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_finish(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// What happened since _begin() was no part of the run: the module was loaded.
void eager_restart(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_restart_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_abandon(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_begin_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_next_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_finish_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_abandon_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Of a TorchScript module, for Python: tells rows apart from a list that the module returned.
void scripted_rows(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// The digest of a file's bytes, as it is now; see module/model_file.h. Throws where there is none.
std::string file_digest(const std::string& path);
void as_loaded(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void fingerprint_as_loaded(const c10::OperatorHandle& op, torch::jit::Stack* stack);
at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows);

// Samples of datasets, many keys at once.
void lookup_samples(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void keep_samples(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void forgo_memory();

// What an exported or compiled program calls in place of lookup_or_run; exported.cpp has its
// schemas.
void define_exported(torch::Library& m);

}  // namespace modcache::ops
