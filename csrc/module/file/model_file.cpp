// SPDX-License-Identifier: Apache-2.0
#include "module/file/model_file.h"

#include <ATen/core/function.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <exception>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/process_wide.h"
#include "cache/cache.h"
#include "module/call/current_cache.h"
#include "module/identity/identity.h"
#include "module/scripted/scripted.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

// The note names torch's version: a fingerprint covers printed source, which every torch prints in
// its own way.
std::string about(const std::string& digest, const std::string& method,
                  const std::string& changes) {
  return "fingerprint 1 torch " + std::string(tensor::kTorchVersion) + " file " + digest +
         " method " + method + (changes.empty() ? "" : " changes " + changes);
}

Result<std::string> digest_now(const cache::FileVersion& version) {
  cache::Cache& cache = *current_cache();
  return cache::digest_of(version, cache, cache.mode());
}

// Returns the advice for another kind of file with this kind of name.
std::string cure_for(const std::string& path) {
  const bool is_exported = path.size() > 4 && path.compare(path.size() - 4, 4, ".pt2") == 0;
  return is_exported ? "a .pt2 archive of torch.export is none"
                     : "one that torch.save wrote is none";
}

class ModelFiles : public ProcessWide<ModelFiles> {
 public:
  ModelFilePtr find(const std::string& path) {
    MutexLock lock(mutex);
    const auto known = by_path_.find(path);
    return known != by_path_.end() ? known->second : nullptr;
  }

  // Stores `fresh` in place of `before`, unless another thread has replaced that meanwhile. Returns
  // what is stored then.
  ModelFilePtr replace(const std::string& path, const ModelFilePtr& before, ModelFilePtr fresh) {
    MutexLock lock(mutex);
    ModelFilePtr& known = by_path_[path];
    if (known == before) known.swap(fresh);
    return known;
  }

 private:
  std::unordered_map<std::string, ModelFilePtr> by_path_ MODCACHE_GUARDED_BY(mutex);
};

}  // namespace

ModelFile::ModelFile(cache::FileVersion version)
    : version_(std::move(version)),
      is_settled_(version_.is_settled),
      loading_fork_registration_(hold_across_fork(loading_)),
      fork_registration_(hold_across_fork(mutex_)) {}

ModelFile::~ModelFile() {
  stop_holding_across_fork(loading_fork_registration_);
  stop_holding_across_fork(fork_registration_);
}

Result<std::string> ModelFile::digest() {
  {
    MutexLock lock(mutex_);
    if (!digest_.empty()) return digest_;
  }
  auto digest = digest_now(version_);
  if (digest.is_ok()) {
    MutexLock lock(mutex_);
    digest_ = digest.value();
  }
  return digest;
}

bool ModelFile::is(cache::FileVersion now) {
  if (!version_.is_same(now)) return false;
  now.take_over(version_);
  std::string known;
  {
    MutexLock lock(mutex_);
    if (is_settled_) return true;
    known = digest_;
  }
  if (known.empty()) return false;
  const auto digest = digest_now(now);
  if (!digest.is_ok() || digest.value() != known) return false;
  MutexLock lock(mutex_);
  is_settled_ = now.is_settled;
  return true;
}

std::string ModelFile::fingerprint(const std::string& method) {
  {
    MutexLock lock(mutex_);
    const auto known = fingerprints_.find(method);
    if (known != fingerprints_.end() && !known->second.text.empty()) return known->second.text;
  }
  const auto digest = this->digest();
  std::string noted = digest.is_ok() ? noted_fingerprint(digest.value(), method, "") : "";
  if (!noted.empty()) keep(method, {noted, true});
  return noted;
}

void ModelFile::keep(const std::string& method, Fingerprint fingerprint) {
  MutexLock lock(mutex_);
  fingerprints_[method] = std::move(fingerprint);
}

at::IValue ModelFile::loaded_on(at::Device device) {
  MutexLock lock(mutex_);
  const auto found = by_device_.find(device.str());
  return found != by_device_.end() ? found->second.module : at::IValue();
}

at::IValue ModelFile::load_on(at::Device device) {
  MutexLock loading(loading_);
  at::IValue module = loaded_on(device);
  if (!module.isNone()) return module;
  module = read_module(device);
  // The file may have been replaced during the load; the module is then of the new version.
  const auto now = cache::look_at(path());
  if (!now.is_ok() || !version_.is_same(now.value())) return module;
  auto as_loaded = std::make_shared<const AsLoaded>(module.toObject());
  MutexLock lock(mutex_);
  by_device_[device.str()] = {module, std::move(as_loaded)};
  fingerprints_.clear();  // if the notes were wrong, the module tells now
  return module;
}

void ModelFile::note_fingerprint_on(at::Device device, const std::string& method) {
  const bool may_keep = cache::may_write(current_cache()->mode());
  Loaded loaded;
  Fingerprint known;
  {
    MutexLock lock(mutex_);
    const auto place = fingerprints_.find(method);
    if (place != fingerprints_.end()) known = place->second;
    if (known.is_noted || (!known.text.empty() && !may_keep)) return;
    const auto found = by_device_.find(device.str());
    if (found == by_device_.end()) return;
    loaded = found->second;
  }
  if (known.text.empty()) {
    known.text = loaded.as_loaded->fingerprint(loaded.module.toObject(), method);
  }
  // The digest of the file may not have been noted either, so this asks for it under a mode that
  // can write.
  const auto digest = may_keep ? digest_now(version_) : this->digest();
  if (digest.is_ok()) note_fingerprint(digest.value(), method, "", known.text);
  keep(method, {known.text, may_keep || known.text.empty()});
}

at::IValue ModelFile::read_module(at::Device device) const {
  try {
    const tensor::OrdinaryTensors ordinary;  // whatever mode the caller is in
    return load_without_grad(path(), device);
  } catch (const std::exception& error) {
    const std::string text = tensor::text_of(error);
    TORCH_CHECK(false, "cache::lookup_or_run_file: '", path(), "' cannot be loaded on ", device,
                " (", text.substr(0, text.find('\n')),
                "). path must name a TorchScript file, as torch.jit.script(module).save(path) "
                "writes it; ",
                cure_for(path()));
  }
}

Result<ModelFilePtr> model_file(const std::string& path) {
  auto now = cache::look_at(path);
  if (!now.is_ok()) return now.status();
  const std::string place = now.value().path;
  ModelFiles& files = ModelFiles::instance();
  ModelFilePtr known = files.find(place);
  if (known != nullptr && known->is(now.value())) return known;
  const bool is_off = current_cache()->mode() == cache::Mode::kOff;
  if (!is_off) now = cache::look_at_settled(place);
  if (!now.is_ok()) return now.status();
  cache::FileVersion version = now.value();
  if (known != nullptr && version.is_same(known->version())) version.take_over(known->version());
  auto fresh = std::make_shared<ModelFile>(version);
  // When a stat cannot tell this version from a next one, its digest must be known before it is
  // loaded.
  if (!is_off && !version.is_settled) (void)fresh->digest();
  return files.replace(place, known, std::move(fresh));
}

ModelFilePtr last_model_file(const std::string& path) {
  return ModelFiles::instance().find(cache::absolute_path(path));
}

std::string noted_fingerprint(const std::string& digest, const std::string& method,
                              const std::string& changes) {
  cache::Cache& cache = *current_cache();
  const auto note = cache.find_note(about(digest, method, changes), cache.mode());
  return note.value_or("");
}

void note_fingerprint(const std::string& digest, const std::string& method,
                      const std::string& changes, const std::string& fingerprint) {
  cache::Cache& cache = *current_cache();
  if (fingerprint.empty() || noted_fingerprint(digest, method, changes) == fingerprint) return;
  cache.keep_note(about(digest, method, changes), fingerprint, cache.mode());
}

AsLoaded::AsLoaded(const ObjectPtr& module) {
  for (const auto* method : module->type()->methods()) {
    try {
      by_method_[method->name()] = identity_of(module, method->name())->observe(module);
    } catch (const std::exception&) {  // its fingerprint stays unknown; the module may still run
      by_method_.erase(method->name());
    }
  }
}

std::string AsLoaded::fingerprint(const ObjectPtr& module, const std::string& method) const {
  const auto observed = by_method_.find(method);
  if (observed == by_method_.end()) return "";
  std::string text = identity_of(module, method)->fingerprint(module).text;
  // Check after the fingerprint was made: if nothing has changed by now, nothing had changed when
  // it was made.
  if (Identity::changed_since(*observed->second, module).has_value()) return "";
  return text;
}

}  // namespace modcache::module
