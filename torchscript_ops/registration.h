// SPDX-License-Identifier: Apache-2.0
//
// How operators are registered. A file has a family of them: their kernels, and one function that
// gives each its schema, which library.cpp calls. Boxed kernels take arguments of type Any.
//
// A model that was saved with a schema must load for ever: arguments may be added at the end with
// defaults, never changed or removed. Names with a leading underscore, and classes, are between the
// Python package and the library, but for those that saved graphs or include/ name
// (tests/python/test_schema.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <utility>

#include "stack.h"

namespace modcache::ops {

using BoxedKernel = void(const c10::OperatorHandle&, Stack*);

template <BoxedKernel* kernel>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

// Registers one operator. By default the schema is conservative: each operator may read and write
// what others do, so TorchScript neither drops, merges, reorders nor folds them.
template <typename Kernel>
void define(torch::Library& m, const std::string& schema, Kernel&& kernel,
            c10::AliasAnalysisKind effects = c10::AliasAnalysisKind::CONSERVATIVE) {
  m.def(torch::schema(schema.c_str(), effects), std::forward<Kernel>(kernel));
}

// The address of the functions in compiled_part.h.
std::int64_t library_calls_address();
// Takes what this thread's last call of them kept for it: a result, or an exception, which is
// thrown. Throws where there is none.
at::IValue take_result();

void register_caches(torch::Library& m);
void register_content_keys(torch::Library& m);
void register_eager(torch::Library& m);
void register_entries(torch::Library& m);
void register_explain(torch::Library& m);
void register_exported(torch::Library& m);
void register_log_reader(torch::Library& m);
void register_lookup_or_run(torch::Library& m);
void register_lowering(torch::Library& m);
void register_model_files(torch::Library& m);
void register_scripted(torch::Library& m);
void register_settings(torch::Library& m);
void register_triton(torch::Library& m);

}  // namespace modcache::ops
