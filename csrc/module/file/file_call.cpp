// SPDX-License-Identifier: Apache-2.0
#include "module/file/file_call.h"

#include <c10/util/Exception.h>

#include <functional>
#include <utility>

#include "cache/cache.h"
#include "module/call/current_cache.h"
#include "module/file/model_file.h"
#include "module/scripted/scripted.h"
#include "tensor/input.h"

namespace modcache::module {
namespace {

[[noreturn]] void refuse_file(const std::string& path, const Status& status) {
  TORCH_CHECK(false, "cache::lookup_or_run_file: path is '", path, "', but ", status.message(),
              ". It must name a TorchScript file, as torch.jit.script(module).save(path) writes "
              "it; a relative path starts at the working directory of the process. With a "
              "scope=\"name@version\" what is stored is found without the file");
}

constexpr Operator kAsked = {
    "cache::lookup_or_run_file",
    "in Python use modcache.lookup_or_run_any(modcache.lazy(path), ...), in TorchScript "
    "cache::lookup_or_run_any with the loaded module"};

// The identity of a call's module, which may be loaded or not.
class FileModule {
 public:
  explicit FileModule(const FileCall& call) : call_(call), device_(tensor::device_of(call.input)) {
    auto found = model_file(call.path);
    file_ = found.is_ok() ? found.value() : last_model_file(call.path);
    if (!found.is_ok() && call.scope.empty()) refuse_file(call.path, found.status());
    if (file_ != nullptr) module_ = file_->loaded_on(device_);
    if (!module_.isNone()) {
      note_fingerprint();
      return;
    }
    unloaded_.name = file_ != nullptr ? file_->name() : call.path;
    unloaded_.load = [this, missing = found.status()] {
      if (!missing.is_ok()) refuse_file(call_.path, missing);
      return file_->load_on(device_);
    };
    if (call.scope.empty()) identify();
  }

  ScriptedCall call() const {
    const Unloaded* const unloaded = module_.isNone() ? &unloaded_ : nullptr;
    return {module_,       call_.input, call_.scope, call_.method,
            Want::kTensor, unloaded,    kAsked,      call_.padding};
  }

 private:
  static bool is_off() { return current_cache()->mode() == cache::Mode::kOff; }
  // Notes the fingerprint of a loaded module, for processes that have not loaded it.
  void note_fingerprint() {
    if (call_.scope.empty() && !is_off()) file_->note_fingerprint_on(device_, call_.method);
  }

  // Finds the module's fingerprint, loading the module if necessary.
  void identify() {
    if (is_off()) return;
    unloaded_.fingerprint = file_->fingerprint(call_.method);
    if (!unloaded_.fingerprint.empty()) return;
    module_ = unloaded_.load();
    note_fingerprint();
  }

  const FileCall& call_;
  const at::Device device_;
  ModelFilePtr file_;
  at::IValue module_;
  Unloaded unloaded_;
};

}  // namespace

at::IValue lookup_or_run_file(const FileCall& call, CallKeys keys) {
  const FileModule module(call);
  return lookup_or_run(module.call(), std::move(keys));
}

}  // namespace modcache::module
