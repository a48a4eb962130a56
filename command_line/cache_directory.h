// SPDX-License-Identifier: Apache-2.0
//
// CacheDirectory: the directory or pack that a command is about: its contexts, scopes and entries.
// Opening it changes no byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cache/context.h"
#include "command_line/manifest.h"
#include "store/listing/listing.h"

namespace modcache::command_line {

// Returns kInvalidArgument unless `path` is a directory that modcache made, which its files must
// show by more than names that others might use, too. Changes nothing, and takes no lock.
Status check_is_cache(const std::string& path);
// The same, but also an empty directory and a path that does not exist are right: one can be made
// there.
Status check_may_be_cache(const std::string& path);
// Returns whether `path` exists and is not a directory; it may then be a pack.
bool is_file(const std::string& path);

inline constexpr std::size_t kMostHeldEntries = 1 << 19;

// A context and the parts of its description. They are empty for a description that is not one of
// cache/context.h.
struct KnownContext {
  store::ListedContext listed;
  std::string name_space;
  std::string method;
  std::string form;  // "whole" or "row"
  std::string arguments;
  std::string autocast;
  std::string class_name;  // what Manifest says; empty until name_contexts()

  const std::string& scope() const { return listed.context.scope; }
};

// The sums over the entries of some contexts.
struct Totals {
  std::int64_t entries = 0;
  std::int64_t payload_bytes = 0;
  std::int64_t record_bytes = 0;
  std::int64_t run_us = 0;
  std::int64_t first_stored_at_us = 0;  // 0, like the next: there are no entries
  std::int64_t last_stored_at_us = 0;

  void add(const store::ListedContext& context);
};

// A scope that has entries, a manifest, or both.
struct KnownScope {
  std::string name_space;
  std::string scope;
  std::string methods;  // those of its contexts, separated by commas
  Totals totals;
  std::optional<Manifest> manifest;
};

class CacheDirectory {
 public:
  // Opens the directory or pack. The message of an error says what is wrong with `path` and what
  // would be right.
  static Result<std::unique_ptr<CacheDirectory>> open(const std::string& path);

  const std::string& path() const { return path_; }
  // The contexts, read once when the directory was opened.
  const std::vector<KnownContext>& contexts() const { return contexts_; }

  // Finds the class or cached function of each context, where that is on record. Reads all notes.
  Status name_contexts();

  // Reads all notes.
  Result<std::vector<Manifest>> manifests() const { return manifests_in(*listing_); }

  // Returns the scopes in the order of namespace and scope, both as people count.
  Result<std::vector<KnownScope>> scopes() const;

  // Calls visit for entries whose keys begin with `key_prefix`, in the order of their keys' bytes,
  // until it returns false. Returns false in that case.
  using Visit = std::function<bool(const store::ListedEntry&)>;
  Result<bool> for_each(const KnownContext& context, std::string_view key_prefix,
                        const Visit& visit) const;
  // Does the same for the first `most` entries in natural order. Holds up to `most_held` in memory,
  // and reads the context again for each further so many.
  Result<bool> for_each_in_order(const KnownContext& context, std::string_view key_prefix,
                                 std::uint64_t most, const Visit& visit,
                                 std::size_t most_held = kMostHeldEntries) const;

 private:
  CacheDirectory(std::string path, std::unique_ptr<store::Listing> listing);
  Status read_contexts();

  const std::string path_;
  const std::unique_ptr<store::Listing> listing_;
  std::vector<KnownContext> contexts_;
};

// Returns kNotFound when the directory has neither entries nor a manifest of exactly this scope.
Status check_has_scope(const std::string& path, const std::string& scope);

// Returns the names of scopes, in their order.
std::vector<std::string> names_of(const std::vector<KnownScope>& scopes);
// Returns the scope that is `given` or, when there is none, the only one that begins with it.
// kNotFound when none or several do; the message names them.
Result<std::string> scope_named(const std::vector<std::string>& scopes, const std::string& given);

}  // namespace modcache::command_line
