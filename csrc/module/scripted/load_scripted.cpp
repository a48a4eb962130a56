// SPDX-License-Identifier: Apache-2.0
#include "module/scripted/load_scripted.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace modcache::module {

at::IValue load_without_grad(const std::string& path, at::Device device) {
  torch::jit::Module module = torch::jit::load(path, device);
  for (at::Tensor tensor : module.parameters()) tensor.set_requires_grad(false);
  for (at::Tensor tensor : module.buffers()) tensor.set_requires_grad(false);
  return module._ivalue();
}

}  // namespace modcache::module
