// SPDX-License-Identifier: Apache-2.0
//
// What needs TorchScript, in a library that is built with MODCACHE_WITH_TORCHSCRIPT=OFF: its public
// operators are there, and throw an error that names this option.
#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <string>

#include "module/watch/tensor_watch.h"
#include "registration.h"

namespace modcache::ops {

[[noreturn]] inline void refuse_torchscript(const std::string& op) {
  TORCH_CHECK(false, op,
              ": needs TorchScript, and this libmodcache.so was built without it "
              "(MODCACHE_WITH_TORCHSCRIPT=OFF). Eager modules, programs of torch.export and of "
              "torch.compile, and AOTInductor packages are cached by this library too; for a "
              "TorchScript module or file build modcache with MODCACHE_WITH_TORCHSCRIPT=ON");
}

inline void refuse(const c10::OperatorHandle& op, Stack*) {
  refuse_torchscript(op.operator_name().name);
}

// The boxed kernel, which need not be defined in a library without TorchScript.
#if MODCACHE_WITH_TORCHSCRIPT
#define MODCACHE_TORCHSCRIPT_KERNEL(kernel) kernel
#else
#define MODCACHE_TORCHSCRIPT_KERNEL(kernel) refuse
#endif

// Returns the weights that the fingerprint of a TorchScript module was made from.
std::shared_ptr<const module::TensorWatch> weights_of_scripted(const at::IValue& module,
                                                               const std::string& method);

}  // namespace modcache::ops
