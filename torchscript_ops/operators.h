// SPDX-License-Identifier: Apache-2.0
//
// The operators of namespace `cache`: each checks its arguments and calls the room below.
// library.cpp has their schemas. Boxed ones take arguments of type Any.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace modcache::ops {

using Options = c10::Dict<std::string, std::string>;
using Counts = c10::Dict<std::string, std::int64_t>;

void lookup_or_run(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void fingerprint(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void refresh_fingerprint(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void content_key(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void content_keys(const c10::OperatorHandle& op, torch::jit::Stack* stack);

std::tuple<bool, at::Tensor> lookup(const std::string& scope, const std::string& key);
at::Tensor store(const std::string& scope, const std::string& key, const at::Tensor& value);
bool contains(const std::string& scope, const std::string& key);

void configure(const Options& options);
Options settings();
void set_mode(const std::string& mode);
std::string mode();
Counts stats();
void reset_stats();
void flush();
std::int64_t clear(const std::string& scope, const std::string& prefix, const std::string& tier);

// Between the Python shim and the library; names with a leading underscore are not public.
void content_key_of_parts(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void content_keys_of_parts(const c10::OperatorHandle& op, torch::jit::Stack* stack);
std::int64_t eager_watch();
void eager_unwatch(std::int64_t watch);
std::string eager_tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors);
void eager_refresh(std::int64_t watch);
void optimizer_stepped(const std::vector<at::Tensor>& tensors);
void eager_begin(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_finish(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void eager_abandon(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace modcache::ops
