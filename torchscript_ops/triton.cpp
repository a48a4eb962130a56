// SPDX-License-Identifier: Apache-2.0
#include "triton.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "define.h"
#include "model_settings.h"

namespace {

struct Handle {
  std::int64_t model = 0;  // 0: there is nothing to unload
};

// Through the dispatcher: when another copy of this library registered the operators, that one has
// the settings.
torch::jit::Stack call(const char* name, c10::IValue argument) {
  torch::jit::Stack stack{std::move(argument)};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack;
}

void log_failure(const char* function, const std::string& why) noexcept {
  try {
    modcache::log(modcache::LogLevel::kError, function, std::string(function) + ": " + why);
  } catch (...) {
    std::fputs("modcache: error: out of memory\n", stderr);
  }
}

void unload(Handle* handle) noexcept {
  constexpr const char* kFunction = "triton_pytorch_model_fini";
  const std::unique_ptr<Handle> owned(handle);
  if (owned == nullptr || owned->model == 0) return;
  try {
    call("cache::_unload_model", owned->model);
  } catch (const std::exception& error) {
    log_failure(kFunction, error.what());
  } catch (...) {
    log_failure(kFunction, "unknown exception");
  }
}

}  // namespace

void* triton_pytorch_model_init(const char* model_dir, int /*device_index*/) {
  auto* handle = new (std::nothrow) Handle;
  if (handle == nullptr) return nullptr;
  try {
    handle->model = call("cache::_load_model", std::string(model_dir != nullptr ? model_dir : ""))
                        .at(0)
                        .toInt();
  } catch (const std::exception& error) {
    log_failure(__func__, error.what());
  } catch (...) {
    log_failure(__func__, "unknown exception");
  }
  return handle;
}

void triton_pytorch_model_fini(void* handle) { unload(static_cast<Handle*>(handle)); }
void triton_pytorch_model_release(void* handle) { unload(static_cast<Handle*>(handle)); }

namespace modcache::ops {

void define_triton(torch::Library& m) {
  define(m, "_load_model(str model_dir) -> int", &load_model);
  define(m, "_unload_model(int model) -> ()", &unload_model);
}

}  // namespace modcache::ops
