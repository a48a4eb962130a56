// SPDX-License-Identifier: Apache-2.0
//
// CacheDirectory: the directory, or pack, that a command is about, as commands see it: what lies
// there, which contexts and scopes it knows. Opening it changes no byte.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cache/context.h"
#include "command_line/manifest.h"
#include "store/listing.h"

namespace modcache::command_line {

// kInvalidArgument unless `path` is a directory that modcache made: what lies in it says so by more
// than a name that others give, too. Changes nothing, and takes no lock.
Status check_is_cache(const std::string& path);
// What is no directory may be a pack.
bool is_file(const std::string& path);

// A context with its parts. Those of a description that is none of cache/context.h are empty.
struct KnownContext {
  store::ListedContext listed;
  std::string name_space;
  std::string method;
  std::string form;  // "whole" or "row"
  std::string arguments;
  std::string autocast;

  const std::string& scope() const { return listed.context.scope; }
};

// One that has entries, a manifest, or both.
struct KnownScope {
  std::string name_space;
  std::string scope;
  std::string methods;  // those of its contexts, with commas
  std::int64_t entries = 0;
  std::int64_t record_bytes = 0;
  std::int64_t run_us = 0;
  std::int64_t first_stored_at_us = 0;
  std::int64_t last_stored_at_us = 0;
  std::optional<Manifest> manifest;
};

class CacheDirectory {
 public:
  // The message of a failure says what is wrong with `path` and what would be right.
  static Result<std::unique_ptr<CacheDirectory>> open(const std::string& path);

  const std::string& path() const { return path_; }
  // Read once, when it was opened.
  const std::vector<KnownContext>& contexts() const { return contexts_; }

  // In the order of namespace and scope.
  Result<std::vector<KnownScope>> scopes() const;

  // Calls visit for entries whose keys begin with `key_prefix`, in the order of their keys, until
  // it says false. False: it did.
  using Visit = std::function<bool(const store::ListedEntry&)>;
  Result<bool> for_each(const KnownContext& context, std::string_view key_prefix,
                        const Visit& visit) const;

 private:
  CacheDirectory(std::string path, std::unique_ptr<store::Listing> listing);
  Status read_contexts();

  const std::string path_;
  const std::unique_ptr<store::Listing> listing_;
  std::vector<KnownContext> contexts_;
};

// kNotFound: the directory has neither entries nor a manifest of exactly this scope.
Status check_has_scope(const std::string& path, const std::string& scope);

// The one scope that is `given` or, where none is, begins with it. kNotFound: none does, or
// several; the message names them.
Result<std::string> scope_named(const std::vector<std::string>& scopes, const std::string& given);

}  // namespace modcache::command_line
