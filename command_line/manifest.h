// SPDX-License-Identifier: Apache-2.0
//
// Manifest: what a scope stood for when it first stored something (FORMAT.md, "Manifests"), and
// what differs between two of them. The text comes from disk: members that are missing or of
// another type than expected are as ones that were never there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/listing.h"

namespace modcache::command_line {

struct Manifest {
  std::string name_space;
  std::string scope;
  std::string face;  // "eager" or "torchscript"
  std::string class_name;
  std::string method;
  std::string torch;
  std::string python;
  std::int64_t created_us = 0;
  std::int64_t process = 0;
  // By name. None: the manifest does not say.
  using Names = std::optional<std::map<std::string, std::string>>;
  Names code;
  Names attributes;
  Names modules;
  Names packages;  // installed ones: the version, and a digest of the files
  Names tensors;
};

// None: `text` is no manifest that this program reads.
std::optional<Manifest> parse_manifest(std::string_view text);

// All that a directory or pack keeps.
Result<std::vector<Manifest>> manifests_in(store::Listing& listing);

struct Difference {
  std::string kind;  // weight, code, attribute, submodule, class, method, face, torch, python
  std::string name;  // empty where the kind says it
  std::string in_a;  // empty: it is not there
  std::string in_b;
};
// Digests of the two faces cannot be compared: of such a pair only the rest is.
std::vector<Difference> differences(const Manifest& a, const Manifest& b);

}  // namespace modcache::command_line
