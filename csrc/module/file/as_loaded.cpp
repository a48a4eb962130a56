// SPDX-License-Identifier: Apache-2.0
#include "module/file/as_loaded.h"

#include <ATen/core/function.h>
#include <ATen/core/jit_type.h>

#include <exception>

#include "module/identity/identity.h"

namespace modcache::module {

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
