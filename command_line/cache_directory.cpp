// SPDX-License-Identifier: Apache-2.0
#include "command_line/cache_directory.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "command_line/entry_columns.h"
#include "command_line/terminal_text.h"
#include "command_line/units.h"
#include "fs/posix_file_system.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/index/index.h"
#include "store/store.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kRowsOfPage = 4096;
constexpr std::size_t kMostScopesNamed = 5;

Status no_cache(const std::string& path, const std::string& why) {
  return Status::invalid_argument("'" + path + "' " + why +
                                  "; DIR is what the setting `dir` or MODCACHE_DIR of the programs "
                                  "that use the cache says");
}

Status no_scope(const std::string& given) {
  return Status::not_found("there is no scope '" + printable(given) +
                           "'; modcache ls DIR --scopes lists all");
}

// Checks SQLite's file header: its title, and the application's number at byte 68.
bool is_our_database(const store::Directory& directory) {
  constexpr std::string_view kTitle("SQLite format 3\0", 16);
  std::array<unsigned char, 72> head{};
  const auto file = directory.file_system().open(directory.database_path(), fs::OpenMode::kRead);
  if (!file.is_ok()) return false;
  const auto count = file.value()->read_at(0, head.data(), head.size());
  if (!count.is_ok() || count.value() != head.size()) return false;
  std::int64_t application = 0;
  for (std::size_t i = 68; i < head.size(); ++i) application = application << 8 | head[i];
  return std::equal(kTitle.begin(), kTitle.end(), head.begin()) &&
         application == store::kApplicationId;
}

// One sign is enough, as a damaged directory lacks some of them.
bool is_made_by_modcache(const store::Directory& directory) {
  if (is_our_database(directory)) return true;
  const Status page = store::ControlPage::open(directory.file_system(), directory.control_path(),
                                               store::ReadVia::kPread, false)
                          .status();
  if (page.is_ok() || page.code() == StatusCode::kUnsupportedVersion) return true;
  const auto segments = directory.segments();
  return segments.is_ok() && !segments.value().empty();
}

KnownContext with_parts(store::ListedContext listed) {
  KnownContext known;
  cache::ContextParts parts;
  if (cache::unpack_context(listed.context.description, parts)) {
    known.name_space = parts.name_space;
    known.method = parts.method;
    known.form = parts.form == cache::Form::kRow ? "row" : "whole";
    known.arguments = parts.arguments;
    known.autocast = parts.autocast;
  }
  known.listed = std::move(listed);
  return known;
}

}  // namespace

void Totals::add(const store::ListedContext& context) {
  first_stored_at_us = entries == 0 ? context.first_stored_at_us
                                    : std::min(first_stored_at_us, context.first_stored_at_us);
  last_stored_at_us = std::max(last_stored_at_us, context.last_stored_at_us);
  entries += context.entries;
  payload_bytes += context.payload_bytes;
  record_bytes += context.record_bytes;
  run_us += context.run_us;
}

Status check_is_cache(const std::string& path) {
  fs::FileSystem& file_system = fs::posix_file_system();
  const auto info = file_system.info(path);
  if (info.is_not_found()) return no_cache(path, "is not there");
  if (!info.is_ok()) return no_cache(path, "cannot be looked at: " + info.status().message());
  if (!info.value().is_directory) return no_cache(path, "is a file, and this needs a directory");
  const auto names = file_system.list(file_system.resolve(path));
  if (!names.is_ok()) {
    return no_cache(path, "cannot be read (" + names.status().message() +
                              "); its owner, or chmod u+rx, can help");
  }
  if (is_made_by_modcache(store::Directory::at(file_system, path))) return Status::ok();
  return no_cache(path, names.value().empty()
                            ? "is an empty directory, no cache"
                            : "is no cache directory: no index.sqlite, control page or segment of "
                              "modcache is in it");
}

Status check_may_be_cache(const std::string& path) {
  fs::FileSystem& file_system = fs::posix_file_system();
  const auto names = file_system.list(file_system.resolve(path));
  const bool is_new =
      file_system.info(path).is_not_found() || (names.is_ok() && names.value().empty());
  return is_new ? Status::ok() : check_is_cache(path);
}

CacheDirectory::CacheDirectory(std::string path, std::unique_ptr<store::Listing> listing)
    : path_(std::move(path)), listing_(std::move(listing)) {}

bool is_file(const std::string& path) {
  const auto info = fs::posix_file_system().info(path);
  return info.is_ok() && !info.value().is_directory;
}

Result<std::unique_ptr<CacheDirectory>> CacheDirectory::open(const std::string& path) {
  if (!is_file(path)) MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
  auto listing = store::Listing::open(fs::posix_file_system(), path);
  if (listing.status().code() == StatusCode::kInvalidArgument) return check_is_cache(path);
  if (!listing.is_ok()) return listing.status();
  std::unique_ptr<CacheDirectory> directory(new CacheDirectory(path, std::move(listing).value()));
  MODCACHE_RETURN_IF_ERROR(directory->read_contexts());
  return directory;
}

Status CacheDirectory::read_contexts() {
  MODCACHE_ASSIGN_OR_RETURN(auto contexts, listing_->contexts());
  for (auto& context : contexts) contexts_.push_back(with_parts(std::move(context)));
  return Status::ok();
}

Result<std::vector<KnownScope>> CacheDirectory::scopes() const {
  using Name = std::pair<std::string, std::string>;
  std::map<Name, KnownScope> scopes;
  std::map<Name, std::set<std::string>> methods;
  for (const KnownContext& context : contexts_) {
    const Name name{context.name_space, context.scope()};
    scopes[name].totals.add(context.listed);
    if (!context.method.empty()) methods[name].insert(context.method);
  }
  MODCACHE_ASSIGN_OR_RETURN(auto manifests, manifests_in(*listing_));
  for (Manifest& manifest : manifests) {
    const Name name{manifest.name_space, manifest.scope};
    if (!manifest.method.empty()) methods[name].insert(manifest.method);
    scopes[name].manifest = std::move(manifest);
  }
  std::vector<KnownScope> known;
  for (auto& [name, scope] : scopes) {
    std::tie(scope.name_space, scope.scope) = name;
    scope.methods = joined(methods[name]);
    known.push_back(std::move(scope));
  }
  std::sort(known.begin(), known.end(), [](const KnownScope& a, const KnownScope& b) {
    return a.name_space != b.name_space ? comes_before(a.name_space, b.name_space)
                                        : comes_before(a.scope, b.scope);
  });
  return known;
}

Status CacheDirectory::name_contexts() {
  MODCACHE_ASSIGN_OR_RETURN(const auto manifests, manifests_in(*listing_));
  std::map<std::pair<std::string_view, std::string_view>, std::string_view> names;
  for (const Manifest& manifest : manifests) {
    names[{manifest.name_space, manifest.scope}] = manifest.class_name;
  }
  for (KnownContext& context : contexts_) {
    const auto name = names.find({context.name_space, context.scope()});
    if (name != names.end()) context.class_name = name->second;
  }
  return Status::ok();
}

Result<bool> CacheDirectory::for_each(const KnownContext& context, std::string_view key_prefix,
                                      const Visit& visit) const {
  std::string from(key_prefix);
  while (true) {
    MODCACHE_ASSIGN_OR_RETURN(auto page, listing_->page(context.listed, from, kRowsOfPage));
    for (const store::ListedEntry& entry : page) {
      if (entry.key.compare(0, key_prefix.size(), key_prefix) != 0) return true;
      if (!visit(entry)) return false;
    }
    if (page.size() < kRowsOfPage) return true;
    from = store::Listing::key_after(page.back().key);
  }
}

// The index has the keys in the order of their bytes, so each round reads them all, and keeps the
// first of those that the rounds before did not have.
Result<bool> CacheDirectory::for_each_in_order(const KnownContext& context,
                                               std::string_view key_prefix, std::uint64_t most,
                                               const Visit& visit, std::size_t most_held) const {
  const auto in_order = [](const store::ListedEntry& a, const store::ListedEntry& b) {
    return comes_before(a.key, b.key);
  };
  std::vector<store::ListedEntry> held;  // a heap once it is full, the last in order on top
  bool is_complete = false;
  std::optional<store::ListedEntry> last;
  while (most > 0 && !is_complete) {
    const std::size_t room = std::min<std::uint64_t>(most, most_held);
    held.clear();
    is_complete = true;
    const auto keep = [&](const store::ListedEntry& entry) {
      if (last && !in_order(*last, entry)) return true;
      if (held.size() < room) {
        held.push_back(entry);
        if (held.size() == room) std::make_heap(held.begin(), held.end(), in_order);
        return true;
      }
      is_complete = false;
      if (!in_order(entry, held.front())) return true;
      std::pop_heap(held.begin(), held.end(), in_order);
      held.back() = entry;
      std::push_heap(held.begin(), held.end(), in_order);
      return true;
    };
    MODCACHE_RETURN_IF_ERROR(for_each(context, key_prefix, keep).status());
    std::sort(held.begin(), held.end(), in_order);
    for (const store::ListedEntry& entry : held) {
      if (!visit(entry)) return false;
    }
    most -= held.size();
    if (!held.empty()) last = std::move(held.back());
  }
  return true;
}

Status check_has_scope(const std::string& path, const std::string& scope) {
  MODCACHE_ASSIGN_OR_RETURN(const auto directory, CacheDirectory::open(path));
  MODCACHE_ASSIGN_OR_RETURN(const auto scopes, directory->scopes());
  const std::vector<std::string> names = names_of(scopes);
  const bool is_there = std::find(names.begin(), names.end(), scope) != names.end();
  return is_there ? Status::ok() : no_scope(scope);
}

std::vector<std::string> names_of(const std::vector<KnownScope>& scopes) {
  std::vector<std::string> names;
  names.reserve(scopes.size());
  for (const KnownScope& scope : scopes) names.push_back(scope.scope);
  return names;
}

Result<std::string> scope_named(const std::vector<std::string>& scopes, const std::string& given) {
  std::set<std::string> beginning;
  for (const std::string& scope : scopes) {
    if (scope == given) return given;
    if (scope.compare(0, given.size(), given) == 0) beginning.insert(scope);
  }
  if (beginning.size() == 1) return *beginning.begin();
  if (beginning.empty()) return no_scope(given);
  std::vector<std::string> some;
  for (const std::string& scope : beginning) {
    if (some.size() < kMostScopesNamed) some.push_back(printable(scope));
  }
  return Status::not_found(std::to_string(beginning.size()) + " scopes begin with '" +
                           printable(given) + "', such as " + joined(some) + "; give more of it");
}

}  // namespace modcache::command_line
