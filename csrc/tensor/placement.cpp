// SPDX-License-Identifier: Apache-2.0
#include "tensor/placement.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

using PlaceKind = cache::Place::Kind;

// True for the guard that torch.compile and fake tensors register in a torch that was built with
// CUDA, on a machine without a device: it reports devices that do not exist.
bool is_pretended(at::DeviceType type) {
  return type == at::kCUDA && !at::globalContext().hasCUDA();
}

int device_count(at::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type) || is_pretended(type)) return 0;
  return static_cast<int>(c10::impl::VirtualGuardImpl(type).deviceCount());
}

std::optional<at::DeviceType> accelerator() {
  const auto type = accelerator_of_torch();
  return type.has_value() && device_count(*type) > 0 ? type : std::nullopt;
}

std::string valid_places() {
  std::string valid = "\"host\", \"pinned\", \"accelerator\"";
  const auto type = accelerator();
  if (!type.has_value()) {
    return valid +
           " (this machine has no accelerator, so that the last two mean the host; a device "
           "such as \"cuda:0\" needs one)";
  }
  const std::string name = c10::DeviceTypeName(*type, /*lower_case=*/true);
  for (int i = 0; i < device_count(*type); ++i)
    valid += ", \"" + name + ':' + std::to_string(i) + '"';
  return valid;
}

Status no_such_place(std::string_view text) {
  return Status::invalid_argument("place is '" + std::string(text) +
                                  "', but must be one of: " + valid_places());
}

cache::Place place_on(const at::Device& device) {
  const at::DeviceIndex index =
      device.has_index() ? device.index()
                         : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
  return {PlaceKind::kDevice, at::Device(device.type(), index).str()};
}

cache::Place on_the_host_instead(std::string_view text) {
  log_once(LogLevel::kWarning, "place-without-accelerator",
           "place '" + std::string(text) +
               "': this machine has no accelerator, so these values stay in ordinary memory");
  return {};
}

// Set after the first failure, as each further attempt would cost a batch time.
std::atomic<bool> has_no_pinned_memory{false};

}  // namespace

Result<cache::Place> parse_place(std::string_view text) {
  if (text == "host" || text == "cpu") return cache::Place{};
  const auto type = accelerator();
  if (text == "pinned" || text == "accelerator") {
    if (!type.has_value()) return on_the_host_instead(text);
    if (text == "pinned") return cache::Place{PlaceKind::kPinned, ""};
    return place_on(at::Device(*type));
  }
  try {
    const at::Device device{std::string(text)};
    const int count = device_count(device.type());
    const bool is_accelerator = !device.is_cpu() && device.type() != at::kMeta;
    if (is_accelerator && count > 0 && device.index() < count) return place_on(device);
  } catch (const std::exception&) {  // torch knows no such device
    return no_such_place(text);
  }
  return no_such_place(text);
}

std::string place_name(const cache::Place& place) {
  switch (place.kind) {
    case PlaceKind::kHost: return "host";
    case PlaceKind::kPinned: return "pinned";
    case PlaceKind::kDevice: break;
  }
  return place.device;
}

at::Tensor pinned_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto options = at::TensorOptions().device(at::kCPU).dtype(dtype);
  if (!has_no_pinned_memory.load(std::memory_order_relaxed) && accelerator().has_value()) {
    try {
      return at::empty(sizes, options.pinned_memory(true));
    } catch (const std::exception& error) {
      has_no_pinned_memory.store(true, std::memory_order_relaxed);
      log_once(LogLevel::kWarning, "pinned-memory",
               std::string("no page-locked memory can be had, so ordinary memory is used: ") +
                   text_of(error));
    }
  }
  return at::empty(sizes, options);
}

at::Tensor copy_to_device(const at::Tensor& tensor, const std::string& device) {
  try {
    OrdinaryTensors ordinary;
    return tensor.to(at::Device(device), /*non_blocking=*/false, /*copy=*/true);
  } catch (const std::exception& error) {
    log_once(LogLevel::kWarning, "place:" + device,
             "stored values stay on the host, since '" + device +
                 "' does not take them: " + text_of(error));
    return {};
  }
}

void note_use_by_current_stream(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  tensor.record_stream(guard.getStream(tensor.device()));
}

}  // namespace modcache::tensor
