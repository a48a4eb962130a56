// SPDX-License-Identifier: Apache-2.0
//
// The manifest (call/manifest.h) of a TorchScript module as it is now.
#pragma once

#include <string>

#include "module/identity/inventory.h"

namespace modcache::module {

// Describes the module's code and, `with_weights`, its tensors and attributes, which have to be
// read for that.
std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights);

}  // namespace modcache::module
