// SPDX-License-Identifier: Apache-2.0
#include "tensor/torch_version.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/_lazy_clone.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <vector>

// A function of torch's C interface from 2.9 on. A weak symbol is null where torch lacks it.
// NOLINTNEXTLINE(readability-identifier-naming): torch's name
extern "C" __attribute__((weak)) std::uint64_t aoti_torch_abi_version();

namespace modcache::tensor {

std::optional<std::string> running_torch() {
  if (aoti_torch_abi_version == nullptr) return std::nullopt;
  // The two highest bytes are the major and the minor version.
  const std::uint64_t version = aoti_torch_abi_version();
  return std::to_string(version >> 56) + '.' + std::to_string(version >> 48 & 0xff);
}

std::optional<std::string> why_not_for_torch(std::string_view built,
                                             const std::optional<std::string>& running) {
  const std::string built_minor(built.substr(0, built.find('.', built.find('.') + 1)));
  if (!running.has_value() || *running == built_minor) return std::nullopt;
  return "it was built for torch " + built_minor + " and this process has torch " + *running;
}

at::Tensor lazy_clone(const at::Tensor& tensor) { return at::_lazy_clone(tensor); }

bool is_bits_dtype(at::ScalarType type) { return c10::isBitsType(type); }

bool is_packed_float(at::ScalarType type) { return type == at::kFloat4_e2m1fn_x2; }

std::optional<std::string_view> new_dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kUInt16: return "uint16";
    case at::kUInt32: return "uint32";
    case at::kUInt64: return "uint64";
    case at::kFloat8_e5m2: return "float8_e5m2";
    case at::kFloat8_e5m2fnuz: return "float8_e5m2fnuz";
    case at::kFloat8_e4m3fn: return "float8_e4m3fn";
    case at::kFloat8_e4m3fnuz: return "float8_e4m3fnuz";
    case at::kFloat8_e8m0fnu: return "float8_e8m0fnu";
    case at::kFloat4_e2m1fn_x2: return "float4_e2m1fn_x2";
#if MODCACHE_TORCH_HAS_BCOMPLEX
    case at::ScalarType::BComplex32: return "bcomplex32";
#endif
    case at::ScalarType::UInt1: return "uint1";
    case at::ScalarType::UInt2: return "uint2";
    case at::ScalarType::UInt3: return "uint3";
    case at::ScalarType::UInt4: return "uint4";
    case at::ScalarType::UInt5: return "uint5";
    case at::ScalarType::UInt6: return "uint6";
    case at::ScalarType::UInt7: return "uint7";
    case at::ScalarType::Int1: return "int1";
    case at::ScalarType::Int2: return "int2";
    case at::ScalarType::Int3: return "int3";
    case at::ScalarType::Int4: return "int4";
    case at::ScalarType::Int5: return "int5";
    case at::ScalarType::Int6: return "int6";
    case at::ScalarType::Int7: return "int7";
    default: return std::nullopt;
  }
}

std::optional<at::DeviceType> accelerator_of_torch() { return at::getAccelerator(); }

c10::ArrayRef<at::DeviceType> autocast_devices() {
  static const std::vector<at::DeviceType> kinds = [] {
    std::vector<at::DeviceType> all{at::kCPU, at::kCUDA, at::kXPU};
    for (const at::DeviceType kind : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      if (std::find(all.begin(), all.end(), kind) == all.end()) all.push_back(kind);
    }
    return all;
  }();
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  if (excluded.has_all(c10::autocast_dispatch_keyset)) return {};
  return kinds;
}

std::optional<at::ScalarType> autocast_dtype(at::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

c10::DispatchKeySet transform_keys() {
  return c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched,
                              c10::DispatchKey::FuncTorchGradWrapper,
                              c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Batched,
                              c10::DispatchKey::Functionalize});
}

bool is_mode_in_force() {
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         !at::functorch::getDynamicLayerStack().empty() ||
         c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Tracer);
}

std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace modcache::tensor
