// SPDX-License-Identifier: Apache-2.0
//
// Registers the operators of namespace `cache`, once in a process.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <string>

#include "base/log.h"
#include "cache/cache.h"
#include "registration.h"
#include "tensor/stored_format.h"
#include "tensor/torch_version.h"

namespace modcache::ops {
namespace {

const tensor::StoredFormat kStoredFormat;

std::string path_of_this_copy() {
  Dl_info copy{};
  return dladdr(&kStoredFormat, &copy) != 0 ? copy.dli_fname : "this one";
}

// A process can load a library that was built for another torch: most symbols are the same.
bool is_for_this_torch() {
  const auto running = tensor::running_torch();
  const auto why_not = tensor::why_not_for_torch(tensor::kTorchVersion, running);
  if (!why_not.has_value()) return true;
  log(LogLevel::kError, "other torch",
      "'" + path_of_this_copy() + "' stays unused: " + *why_not +
          "; load the libmodcache.so for that torch (`modcache path --torch " + *running +
          "` prints it), or build one");
  return false;
}

// TORCH_LIBRARY by hand: torch ends a process that registers one namespace twice, and a process
// may well come to load a second copy of this library.
bool register_once() {
  if (!is_for_this_torch()) return false;
  if (c10::Dispatcher::singleton().findSchema({"cache::lookup_or_run", ""}).has_value()) {
    log(LogLevel::kError, "second copy",
        "another copy of libmodcache.so is loaded in this process, so '" + path_of_this_copy() +
            "' stays unused; load one of them only");
    return false;
  }
  cache::set_value_format(kStoredFormat);
  // Never destroyed: models may run while the process exits.
  static auto& library =
      *new torch::Library(torch::Library::DEF, "cache", /*k=*/{}, __FILE__, __LINE__);
  for (const auto register_family :
       {register_lookup_or_run, register_scripted, register_lowering, register_model_files,
        register_entries, register_settings, register_caches, register_content_keys, register_eager,
        register_explain, register_log_reader, register_triton, register_exported}) {
    register_family(library);
  }
  return true;
}

// An exception of the dispatcher while the library is loaded ends the process either way.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool kIsRegistered = register_once();

}  // namespace
}  // namespace modcache::ops

// "0.1.0": the one C symbol of libmodcache.so, for a host that wants to know which one it loaded.
extern "C" __attribute__((visibility("default"))) const char* modcache_version() {
  return MODCACHE_VERSION;
}
