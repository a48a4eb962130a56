// SPDX-License-Identifier: Apache-2.0
//
// Manifest: what a scope stood for when it first stored something: the digests of code, tensors and
// attributes by name, as JSON text (FORMAT.md). It is a note of the directory (store/notes.h), and
// says later which of them are others now. No value of a module is in it.
//
// Of the directory and namespace that are in force. Nothing here fails for a cache's reason: a
// manifest that cannot be kept or read is none. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "module/identity.h"
#include "module/module_run.h"

namespace modcache::module {

// A text longer than this is not kept, nor is an empty one; the scope then lacks none any more, so
// that it is not made again at every miss.
inline constexpr std::size_t kMostManifestBytes = 512 << 10;
// Of a class and method so many scopes are remembered.
inline constexpr std::size_t kMostScopesOfClass = 8;

// Whether `scope` is to be given a manifest: it has none, and the mode lets it be written. Costs a
// look into a table where the scope is known.
bool lacks_manifest(const std::string& scope);

// Keeps `text`, and that `scope` is the latest of `class_name` and `method`. Of two processes that
// do so at once, one may lose its place in that list.
void put_manifest(const std::string& scope, const std::string& class_name,
                  const std::string& method, const std::string& text);

// Empty: there is none.
std::string manifest_of(const std::string& scope);
// Oldest first.
std::vector<std::string> scopes_of_class(const std::string& class_name, const std::string& method);

// The manifest of a TorchScript module as it is now. `with_weights`: its tensors and attributes,
// which are read for it, and its code; else what needs no look at it.
std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights);

}  // namespace modcache::module
