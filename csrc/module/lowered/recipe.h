// SPDX-License-Identifier: Apache-2.0
//
// Recipe: instructions for making the fingerprint of a module's method from the values of its
// attributes: the digest of the code, and the attributes in their order. A lowered graph
// (lowering.h) holds it as text beside the values, so that it needs no module to make the
// fingerprint.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "module/identity/identity.h"
#include "module/identity/inventory.h"

namespace modcache::module {

struct Recipe {
  struct Step {
    std::string path;
    bool is_submodule = false;
    std::size_t object = 0;  // of a submodule: the number of the object in its class_mark
    std::string class_mark;
    // For a value of a submodule that lies at several paths: the step of the first path. While both
    // are one value, this step adds nothing.
    std::optional<std::size_t> same_as;
  };

  Digest128 code;
  std::vector<Step> steps;  // the attributes that are read; all but submodules have a value

  // Returns kInvalidArgument for a module that values cannot represent; the message says which
  // part.
  static Result<Recipe> of(const Source& source, const Inventory& inventory);

  // One line per step. It is part of saved models, so every version stays readable for ever.
  std::string text() const;
  // Returns kCorruption for any other text.
  static Result<Recipe> parse(std::string_view text);
};

}  // namespace modcache::module
