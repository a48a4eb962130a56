// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <string>

namespace modcache::module {

// Loads the TorchScript module in `path` onto `device`. None of its parameters and buffers requires
// grad. Throws what torch throws.
at::IValue load_without_grad(const std::string& path, at::Device device);

}  // namespace modcache::module
