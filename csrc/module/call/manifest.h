// SPDX-License-Identifier: Apache-2.0
//
// Manifest: a description of what a scope stood for when it first stored something: the digests of
// code, tensors and attributes by name, as JSON text (FORMAT.md). It is a note of the directory
// (store/directory/notes.h), and tells later which of them have changed. It contains no value of a
// module.
//
// All functions use the directory and namespace of the call, or those in force in the cache. None
// fails because the cache does: a manifest that cannot be stored or read counts as missing.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "module/call/call_parts.h"

namespace modcache::module {

// An empty text and one longer than this are not stored. The scope then no longer counts as lacking
// a manifest, so that the text is not made again at every miss.
inline constexpr std::size_t kMostManifestBytes = 512 << 10;
// The number of scopes that are remembered for a class and method.
inline constexpr std::size_t kMostScopesOfClass = 8;

// Returns whether a manifest should be made for the scope of the call: it has none, and the mode
// allows writing. For a known scope this costs a lookup in a table.
bool lacks_manifest(const CallParts& parts);

// Stores `text` for the scope of the call, and notes the scope as the latest one of `class_name`
// and the method. When two processes do so at once, one of them may be missing from that list.
void put_manifest(const CallParts& parts, const std::string& class_name, const std::string& text);

// Returns the manifest; empty when there is none.
std::string manifest_of(cache::Cache& cache, const std::string& scope);
// Returns the scopes that were noted for the class and method, oldest first.
std::vector<std::string> scopes_of_class(cache::Cache& cache, const std::string& class_name,
                                         const std::string& method);

}  // namespace modcache::module
