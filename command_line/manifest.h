// SPDX-License-Identifier: Apache-2.0
//
// Manifest: a description of what a scope stood for when it first stored something (FORMAT.md,
// "Manifests"), and the differences between two of them. The text comes from disk: members of an
// unexpected type count as missing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/listing/listing.h"

namespace modcache::command_line {

struct Manifest {
  std::string name_space;
  std::string scope;
  std::string face;  // "eager" or "torchscript"
  // For people: the class, or the cached function, such as "train.embed".
  std::string class_name;
  std::string method;
  std::string torch;
  std::string python;
  std::int64_t created_us = 0;
  std::int64_t process = 0;
  // Digests by name; nothing when the manifest does not have them.
  using Names = std::optional<std::map<std::string, std::string>>;
  Names code;
  Names attributes;
  Names modules;
  Names packages;              // installed packages: the version, and a digest of the files
  std::string package_values;  // a digest of the values in them
  Names tensors;
};

// Returns nothing when `text` is not a manifest that this program can read.
std::optional<Manifest> parse_manifest(std::string_view text);

// Returns all manifests of a directory or pack.
Result<std::vector<Manifest>> manifests_in(store::Listing& listing);

// A kind of difference: values or functions that installed packages hold in a process.
inline constexpr char kPackageValues[] = "package values";

struct Difference {
  std::string kind;  // weight, code, attribute, submodule, class, method, face, torch, python
  std::string name;  // empty where the kind is enough
  std::string in_a;  // empty: not in A
  std::string in_b;
};
// The digests of an eager and a TorchScript manifest cannot be compared, so for such a pair only
// the other members are.
std::vector<Difference> differences(const Manifest& a, const Manifest& b);

}  // namespace modcache::command_line
