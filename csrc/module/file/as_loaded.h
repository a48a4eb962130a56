// SPDX-License-Identifier: Apache-2.0
//
// AsLoaded: the state of a TorchScript module right after loading, to find out later whether the
// module is still in that state. Hashes nothing; keeps no part of the module alive. Immutable; any
// thread may ask it.
#pragma once

#include <torch/custom_class.h>

#include <map>
#include <memory>
#include <string>

#include "module/identity/inventory.h"

namespace modcache::module {

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

}  // namespace modcache::module
