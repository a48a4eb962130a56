// SPDX-License-Identifier: Apache-2.0
//
// ModelFile: a TorchScript file as a module that is loaded at its first need, once for each device
// that it is needed on. All callers of a process share it, and nobody else can reach the module: so
// nothing in it requires grad.
//
// One ModelFile is one version of the file: a file that was written to or replaced is another.
// Any thread; a fork waits until a load has ended.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "cache/file_version.h"
#include "module/as_loaded.h"
#include "module/inventory.h"

namespace modcache::module {

class ModelFile {
 public:
  explicit ModelFile(cache::FileVersion version);
  ~ModelFile();
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  const cache::FileVersion& version() const { return version_; }
  const std::string& path() const { return version_.path; }
  std::string name() const { return path().substr(path().rfind('/') + 1); }

  // Of the file's bytes, 32 hexadecimal digits; the first call may read them.
  Result<std::string> digest();
  // Whether `now` is this version. Reads the file while a stat cannot tell.
  bool is(cache::FileVersion now);

  // What `method` has right after loading, as it was noted; empty where it is not known.
  std::string fingerprint(const std::string& method);

  // The module on this device; None while it is not loaded there.
  at::IValue loaded_on(at::Device device);
  // The same, loading it at need. Throws for a file that is no TorchScript file, which is tried
  // again at the next call.
  at::IValue load_on(at::Device device);
  // Notes for other processes the fingerprint of `method`, once, as far as the mode allows, and as
  // long as the module on this device is what was loaded.
  void note_fingerprint_on(at::Device device, const std::string& method);

 private:
  struct Loaded {
    at::IValue module;
    std::shared_ptr<const AsLoaded> as_loaded;
  };
  struct Fingerprint {
    std::string text;       // empty: not known
    bool is_noted = false;  // or cannot be
  };
  at::IValue read_module(at::Device device) const;
  void keep(const std::string& method, Fingerprint fingerprint);

  const cache::FileVersion version_;
  Mutex loading_;  // held during a load; before mutex_
  Mutex mutex_;
  bool is_settled_ MODCACHE_GUARDED_BY(mutex_);
  std::string digest_ MODCACHE_GUARDED_BY(mutex_);
  std::map<std::string, Fingerprint> fingerprints_ MODCACHE_GUARDED_BY(mutex_);  // by method
  std::map<std::string, Loaded> by_device_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t loading_ticket_;
  std::uint64_t fork_ticket_;
};

using ModelFilePtr = std::shared_ptr<ModelFile>;

// The file as it is now; one stat where nothing changed. Under `off` nothing is read or waited for:
// while a stat cannot tell, each answer is another ModelFile then.
Result<ModelFilePtr> model_file(const std::string& path);
// As it was when it was last asked for; null where it never was.
ModelFilePtr last_model_file(const std::string& path);

// What is noted of modules in files, by the digest of these: the fingerprint that a method has
// right after loading. `changes` says what is done to the module then; empty: nothing. An empty
// fingerprint: not known.
std::string noted_fingerprint(const std::string& digest, const std::string& method,
                              const std::string& changes);
void note_fingerprint(const std::string& digest, const std::string& method,
                      const std::string& changes, const std::string& fingerprint);

}  // namespace modcache::module
