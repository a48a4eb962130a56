// SPDX-License-Identifier: Apache-2.0
//
// ModelFile: a TorchScript file as a module that is loaded when it is first needed, once for each
// device that it is needed on. All callers of a process share it and nobody else can reach the
// module, so nothing in it requires grad.
//
// One ModelFile is one version of the file: a file that was written to or replaced is another one.
// Any thread may call it; a fork waits until a load has ended.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "cache/file_version.h"
#include "module/identity/inventory.h"

namespace modcache::module {

// AsLoaded: the state of a TorchScript module right after loading, to find out later whether the
// module is still in that state. Hashes nothing; keeps no part of the module alive. Immutable; any
// thread may ask it.
class AsLoaded : public torch::CustomClassHolder {
 public:
  explicit AsLoaded(const ObjectPtr& module);

  // Returns the fingerprint that `method` had right after loading. Empty when something that it
  // reads or writes has changed since, and for a method that has none. Hashes what is not hashed
  // yet.
  std::string fingerprint(const ObjectPtr& module, const std::string& method) const;

 private:
  std::map<std::string, std::shared_ptr<const Inventory>> by_method_;
};

class ModelFile {
 public:
  explicit ModelFile(cache::FileVersion version);
  ~ModelFile();
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  const cache::FileVersion& version() const { return version_; }
  const std::string& path() const { return version_.path; }
  std::string name() const { return path().substr(path().rfind('/') + 1); }

  // The digest of the file's bytes, 32 hexadecimal digits. The first call may read the file.
  Result<std::string> digest();
  // Returns whether `now` is this version. Reads the file when a stat cannot tell.
  bool is(cache::FileVersion now);

  // Returns the fingerprint of `method` right after loading, as it was noted; empty when it is not
  // known.
  std::string fingerprint(const std::string& method);

  // Returns the module on this device; None when it is not loaded there.
  at::IValue loaded_on(at::Device device);
  // Returns the same, after loading it if necessary. Throws for a file that is not a TorchScript
  // file; the next call tries again.
  at::IValue load_on(at::Device device);
  // Notes the fingerprint of `method` for other processes, once, if the mode allows it and the
  // module on this device is still as it was loaded.
  void note_fingerprint_on(at::Device device, const std::string& method);

 private:
  struct Loaded {
    at::IValue module;
    std::shared_ptr<const AsLoaded> as_loaded;
  };
  struct Fingerprint {
    std::string text;       // empty: not known
    bool is_noted = false;  // or cannot be noted
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
  std::uint64_t loading_fork_registration_;
  std::uint64_t fork_registration_;
};

using ModelFilePtr = std::shared_ptr<ModelFile>;

// Returns the file in its current version; costs one stat when nothing has changed. While the mode
// is off this reads nothing and waits for nothing, so as long as a stat cannot tell versions apart,
// each call returns another ModelFile.
Result<ModelFilePtr> model_file(const std::string& path);
// Returns the version that was last asked for; null when there was none.
ModelFilePtr last_model_file(const std::string& path);

// Read and write the note on a module in a file with this digest: the fingerprint that a method has
// right after loading and after `changes`, a description of what was done to the module (empty:
// nothing). An empty fingerprint means that it is not known.
std::string noted_fingerprint(const std::string& digest, const std::string& method,
                              const std::string& changes);
void note_fingerprint(const std::string& digest, const std::string& method,
                      const std::string& changes, const std::string& fingerprint);

}  // namespace modcache::module
