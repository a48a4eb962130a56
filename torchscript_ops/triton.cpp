// SPDX-License-Identifier: Apache-2.0
#include "triton.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/custom_class.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "model_settings.h"
#include "registration.h"

namespace {

struct Handle {
  c10::IValue model;  // what cache::_load_model gave; None: there is nothing to unload
};

// Through the dispatcher: when another copy of this library registered the operators, that one has
// the settings.
c10::IValue load(const std::string& model_dir) {
  c10::Stack stack{model_dir};
  c10::Dispatcher::singleton().findSchemaOrThrow("cache::_load_model", "").callBoxed(stack);
  return std::move(stack.at(0));
}

void log_failure(const char* function, const std::string& why) noexcept {
  try {
    modcache::log(modcache::LogLevel::kError, function, std::string(function) + ": " + why);
  } catch (...) {
    std::fputs("modcache: error: out of memory\n", stderr);
  }
}

}  // namespace

void* triton_pytorch_model_init(const char* model_dir, int /*device_index*/) {
  auto* handle = new (std::nothrow) Handle;
  if (handle == nullptr) return nullptr;
  try {
    handle->model = load(model_dir != nullptr ? model_dir : "");
  } catch (const std::exception& error) {
    log_failure(__func__, error.what());
  } catch (...) {
    log_failure(__func__, "unknown exception");
  }
  return handle;
}

void triton_pytorch_model_fini(void* handle) { delete static_cast<Handle*>(handle); }
void triton_pytorch_model_release(void* handle) { delete static_cast<Handle*>(handle); }

namespace modcache::ops {
namespace {

// A model that is loaded for as long as this lives.
class LoadedModel : public torch::CustomClassHolder {
 public:
  explicit LoadedModel(const std::string& model_dir) : number_(load_model(model_dir)) {}
  ~LoadedModel() override {
    try {
      unload_model(number_);
    } catch (const std::exception& error) {
      log_failure("triton_pytorch_model_fini", error.what());
    } catch (...) {
      log_failure("triton_pytorch_model_fini", "unknown exception");
    }
  }
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

 private:
  const std::int64_t number_;
};

}  // namespace

void register_triton(torch::Library& m) {
  m.class_<LoadedModel>("LoadedModel");
  define(m, "_load_model(str model_dir) -> __torch__.torch.classes.cache.LoadedModel",
         [](const std::string& model_dir) { return c10::make_intrusive<LoadedModel>(model_dir); });
}

}  // namespace modcache::ops
