// SPDX-License-Identifier: Apache-2.0
//
// Recipe: how the fingerprint of a module's method is made from the values of its attributes. A
// lowered graph (lowering.h) holds it as text beside the values, so that it needs no module to say
// who it is: the digest of the code, and the attributes in their order.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "module/attributes_hasher.h"
#include "module/inventory.h"

namespace modcache::module {

struct Recipe {
  struct Step {
    std::string path;
    bool is_submodule = false;
    std::size_t object = 0;  // of a submodule, as its class_mark
    std::string class_mark;
    // Of a value of a submodule that lies at several paths: the step of the first path. While both
    // are one value, this one says nothing new.
    std::optional<std::size_t> same_as;
  };

  Digest128 code;
  std::vector<Step> steps;  // what is read; values stand for those that are no submodules

  // kInvalidArgument says what of the module no values can stand for.
  static Result<Recipe> of(const Source& source, const Inventory& inventory);

  // One line for each step. Part of saved models, so every version is understood for ever.
  std::string text() const;
  // kCorruption: it is no such text.
  static Result<Recipe> parse(std::string_view text);
};

}  // namespace modcache::module
