// SPDX-License-Identifier: Apache-2.0
//
// LoweredCallGraph: one call of lookup_or_run in a graph after its analysis, and the nodes that
// replace it (lowering.h shows them). Used by lowering.cpp alone.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>

#include "base/result.h"
#include "module/identity/inventory.h"
#include "module/lowered/recipe.h"

namespace modcache::module {

bool is_lookup_or_run(const torch::jit::Node& node);

class LoweredCallGraph {
 public:
  // Analyses a call. `self` is a module whose method has the node. Returns kInvalidArgument when
  // the call cannot be lowered; the message says why, and what helps.
  static Result<LoweredCallGraph> of(torch::jit::Node& node, const ObjectPtr& self);

  // Replaces the node. Call it once.
  void write() const;

 private:
  LoweredCallGraph(torch::jit::Node& node, std::string method, std::string class_name);

  Status understand(const ObjectPtr& module);
  Status check_call(const c10::ClassType& type) const;

  c10::TypePtr input_type() const;

  torch::jit::Value* write_runs(torch::jit::Value* call) const;
  struct Run {
    torch::jit::Value* result;    // the method's own, so that TorchScript sees what it aliases
    torch::jit::Value* finished;  // the output of the operator that ends a run
  };
  Run write_run(torch::jit::Value* call) const;
  torch::jit::Value* write_call() const;
  torch::jit::Value* write_identity() const;
  torch::jit::Value* write_identity_of_run(torch::jit::Value* call) const;
  torch::jit::Value* write_state(torch::jit::Value* call, std::int64_t moment) const;
  torch::jit::Value* write_attributes(const std::vector<std::string>& paths) const;
  torch::jit::Value* write_result_type() const;
  torch::jit::Value* as_result(torch::jit::Value* value) const;
  torch::jit::Value* insert(const char* op, std::vector<torch::jit::Value*> inputs) const;

  torch::jit::Node* node_;
  std::string method_;
  std::string class_name_;
  c10::TypePtr result_type_;  // of the method; null: not declared
  std::string recipe_;
  std::vector<std::string> read_;         // paths of the attributes that the fingerprint covers
  std::vector<std::string> reached_;      // those, and the ones that the method only writes
  std::vector<std::string> replaceable_;  // those of them that a run may replace
};

}  // namespace modcache::module
