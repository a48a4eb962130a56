// SPDX-License-Identifier: Apache-2.0
//
// AsLoaded: what a TorchScript module was right after loading, for whoever asks later whether it
// still is that. Hashes nothing; keeps no part of the module alive. Immutable; any thread.
#pragma once

#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <string>

#include "module/inventory.h"

namespace modcache::module {

class AsLoaded : public torch::CustomClassHolder {
 public:
  explicit AsLoaded(const ObjectPtr& module);

  // The fingerprint that `method` had right after loading. Empty where something that it reads or
  // writes changed since, and for a method that has none. Hashes what is not hashed yet.
  std::string fingerprint(const ObjectPtr& module, const std::string& method) const;

 private:
  std::map<std::string, std::shared_ptr<const Inventory>> by_method_;
};

}  // namespace modcache::module
