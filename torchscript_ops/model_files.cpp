// SPDX-License-Identifier: Apache-2.0
//
// TorchScript files that Python loads at their first miss (module/file/model_file.h).
#include <torch/custom_class.h>

#include <string>

#include "needs_torchscript.h"
#include "registration.h"

#if MODCACHE_WITH_TORCHSCRIPT

#include "arguments.h"
#include "module/file/model_file.h"

namespace modcache::ops {
namespace {

using module::AsLoaded;

struct ModelFile : torch::CustomClassHolder {};

// The digest of a file's bytes, as it is now. Throws where there is none.
std::string file_digest(const std::string& path) {
  const auto file = module::model_file(path);
  check_ok("modcache.lazy", file.status());
  const auto digest = file.value()->digest();
  check_ok("modcache.lazy", digest.status());
  return digest.value();
}

std::string fingerprint_as_loaded(const c10::intrusive_ptr<AsLoaded>& loaded,
                                  const at::IValue& module, const std::string& method) {
  return loaded->fingerprint(module.toObject(), method);
}

}  // namespace

void register_model_files(torch::Library& m) {
  m.class_<ModelFile>("ModelFile")
      .def_static("digest", &file_digest)
      .def_static("noted_fingerprint", &module::noted_fingerprint)
      .def_static("note_fingerprint", &module::note_fingerprint);
  m.class_<AsLoaded>("AsLoaded")
      .def(torch::init([](const at::IValue& module) {
        return c10::make_intrusive<AsLoaded>(module.toObject());
      }))
      .def("fingerprint", &fingerprint_as_loaded);
}

}  // namespace modcache::ops

#else

namespace modcache::ops {
namespace {

struct ModelFile : torch::CustomClassHolder {};

}  // namespace

// Python asks for the digest before all else.
void register_model_files(torch::Library& m) {
  m.class_<ModelFile>("ModelFile").def_static("digest", [](const std::string&) {
    refuse_torchscript("modcache.lazy");
  });
}

}  // namespace modcache::ops

#endif  // MODCACHE_WITH_TORCHSCRIPT
