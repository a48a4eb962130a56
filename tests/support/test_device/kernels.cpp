// SPDX-License-Identifier: Apache-2.0
//
// The operators of the test device. Copies and fills are work of the current stream, and return
// before it is done wherever CUDA's do. Views need no work. All else waits for the current stream,
// runs on the host on copies, and copies back.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "allocators.h"
#include "devices.h"

namespace test_device {
namespace {

// Returns a tensor that shares the memory, for the device's own work. It does not keep the memory
// alive: who frees it too early shall see what comes of that.
at::Tensor for_work(const at::Tensor& tensor) {
  auto* address = static_cast<std::byte*>(const_cast<void*>(tensor.storage().data()));
  if (!tensor.is_cpu()) address = own_address(address);
  address += tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size());
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU);
  at::Tensor shared = at::from_blob(address, tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) shared._set_conj(true);
  if (tensor.is_neg()) shared._set_neg(true);
  return shared;
}

// Without this, a tensor that was made under inference mode would be one itself.
struct PlainTensors {
  c10::InferenceMode no_inference{false};
  at::AutoDispatchBelowADInplaceOrView plain;
};

// Runs `work`, which copies from `from` to `to`, on the current streams of their devices.
Mark enqueue_between(const at::Tensor& from, const at::Tensor& to, std::function<void()> work) {
  const bool is_download = to.is_cpu();
  const c10::Stream stream = current_stream((is_download ? from : to).device().index());
  WorkQueue& queue = queue_of(stream);
  const bool joins_two = !from.is_cpu() && !to.is_cpu() && from.device() != to.device();
  if (!joins_two) return {&queue, queue.enqueue(std::move(work))};
  const c10::Stream other = current_stream(from.device().index());
  const Mark source = Mark::end_of(other);
  queue.follow(*source.queue, source.ticket);
  const Mark mark{&queue, queue.enqueue(std::move(work))};
  source.queue->follow(queue, mark.ticket);
  return mark;
}

// Whether a copy is one of bytes, which works for every dtype.
bool is_plain(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
         from.is_contiguous() && to.is_contiguous() && from.is_conj() == to.is_conj() &&
         from.is_neg() == to.is_neg();
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (to.is_cpu()) to.mutable_data_ptr();  // ends its sharing with copy-on-write aliases
  const PlainTensors plain;
  const Mark mark = enqueue_between(
      from, to, [source = for_work(from), target = for_work(to), is_plain = is_plain(from, to)] {
        if (is_plain) {
          std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
          return;
        }
        const PlainTensors also_here;
        target.copy_(source);
      });
  if (!from.is_cpu() && !to.is_cpu()) return to;
  const at::Tensor& of_host = from.is_cpu() ? from : to;
  const void* address = of_host.storage().data();
  if (non_blocking && is_pinned(address)) {
    record_pinned_use(address, current_stream((from.is_cpu() ? to : from).device().index()));
  } else {
    mark.queue->wait(mark.ticket);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

c10::Device device_or_current(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? *device : c10::Device(kType, current_device());
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "only memory of the host can be pinned");
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, c10::GetAllocator(kType),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "only memory of the host can be pinned");
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// Moves the bytes to a larger storage where the tensor's has no room.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  const std::size_t wanted =
      at::detail::computeStorageNbytesContiguous(sizes, self.element_size(), self.storage_offset());
  c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
  if (wanted > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr larger = c10::GetAllocator(kType)->allocate(wanted);
    if (storage->nbytes() > 0) {
      queue_of(current_stream(self.device().index()))
          .enqueue([from = own_address(storage->data()), to = own_address(larger.get()),
                    size = storage->nbytes()] { std::memcpy(to, from, size); });
    }
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(wanted);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  const PlainTensors plain;
  queue_of(current_stream(self.device().index())).enqueue([target = for_work(self), value] {
    const PlainTensors also_here;
    target.fill_(value);
  });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

at::Scalar local_scalar(const at::Tensor& self) { return self.to(at::kCPU).item(); }

void record_stream(at::Tensor& self, c10::Stream stream) {
  record_use(self.storage().data_ptr(), stream);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

// --- For tests ---------------------------------------------------------------------------------

void set_delay_us(std::int64_t delay_us) {
  WorkQueue::set_delay(std::chrono::microseconds(delay_us));
}

// A gate that streams stop at.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool is_closed = false;
};
Gate& gate() {
  static Gate& one = *new Gate;
  return one;
}

void hold() {
  Gate& here = gate();
  {
    const std::lock_guard<std::mutex> lock(here.mutex);
    here.is_closed = true;
  }
  queue_of(current_stream(current_device())).enqueue([&here] {
    std::unique_lock<std::mutex> lock(here.mutex);
    here.opened.wait(lock, [&] { return !here.is_closed; });
  });
}

void release() {
  Gate& here = gate();
  const std::lock_guard<std::mutex> lock(here.mutex);
  here.is_closed = false;
  here.opened.notify_all();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){// the macro's name for it
                                                 KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)}

// Copies see these marks themselves (for_work); torch's own way of removing them is a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("fill_.Scalar", &fill);
  library.impl("zero_", &zero);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("record_stream", &record_stream);
  library.impl("as_strided", &as_strided);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
}

TORCH_LIBRARY(test_device, library) {
  // How long each piece of work is put off, on every stream: makes a missing wait visible.
  library.def("set_delay_us(int delay_us) -> ()", &set_delay_us);
  // Stops the current stream; release() lets all go on.
  library.def("hold() -> ()", &hold);
  library.def("release() -> ()", &release);
}

const bool g_is_named = [] {
  c10::register_privateuse1_backend("testdevice");
  return true;
}();

}  // namespace
}  // namespace test_device
