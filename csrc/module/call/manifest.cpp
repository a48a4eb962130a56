// SPDX-License-Identifier: Apache-2.0
#include "module/call/manifest.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/process_wide.h"
#include "cache/cache.h"

namespace modcache::module {
namespace {

std::string about_scope(const cache::Settings& settings, const std::string& scope) {
  return "manifest " + settings.name_space + '\n' + scope;
}

std::string about_class(const cache::Settings& settings, const std::string& class_name,
                        const std::string& method) {
  return "scopes " + settings.name_space + '\n' + class_name + '.' + method;
}

// Writes each scope with its length, as a scope may hold any character.
std::string list_of(const std::vector<std::string>& scopes) {
  std::string text;
  for (const std::string& scope : scopes) text += std::to_string(scope.size()) + ' ' + scope + '\n';
  return text;
}

// Reads a note without creating the directory, which a mode that may write would do.
std::string note_in(cache::Cache& cache, const std::string& about) {
  const cache::Mode mode = cache.mode();
  return cache.find_note(about, may_read(mode) ? cache::Mode::kRead : mode).value_or("");
}

// Returns the scopes up to the first damaged one.
std::vector<std::string> scopes_in(std::string_view text) {
  std::vector<std::string> scopes;
  while (!text.empty()) {
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (error != std::errc() || text.size() < 2 || size > text.size() - 2) break;
    scopes.emplace_back(text.substr(1, size));
    text.remove_prefix(size + 2);
  }
  return scopes;
}

// The scopes that have a manifest, as far as this process knows, each with the directory's count of
// removals at that time: a removal may have been the manifest's.
class Seen : public ProcessWide<Seen> {
 public:
  bool contains(const Digest128& scope, std::uint64_t removals) {
    MutexLock lock(mutex);
    const auto known = removals_.find(scope);
    return known != removals_.end() && known->second == removals;
  }
  void insert(const Digest128& scope, std::uint64_t removals) {
    MutexLock lock(mutex);
    if (removals_.size() >= kMost) removals_.clear();
    removals_[scope] = removals;
  }

  static Digest128 address_of(const CallParts& parts) {
    const cache::Settings& settings = parts.settings();
    return store::address_of(store::address_of(xxh3_128(settings.dir), settings.name_space),
                             parts.scope);
  }

 private:
  static constexpr std::size_t kMost = 1 << 12;

  std::unordered_map<Digest128, std::uint64_t, Digest128Hash> removals_ MODCACHE_GUARDED_BY(mutex);
};

// Turns a failure of the cache into `otherwise`, as it must not become an exception in a model.
template <typename Function, typename Otherwise>
Otherwise guarded(Function&& function, Otherwise otherwise) {
  try {
    return function();
  } catch (const std::exception&) {
    return otherwise;
  }
}

}  // namespace

bool lacks_manifest(const CallParts& parts) {
  return guarded(
      [&] {
        if (parts.scope.empty() || !may_write(parts.mode)) return false;
        const Digest128 address = Seen::address_of(parts);
        const std::uint64_t removals = parts.configuration->tiers.disk->removals();
        if (Seen::instance().contains(address, removals)) return false;
        const std::string about = about_scope(parts.settings(), parts.scope);
        if (!parts.cache->find_note(about, parts.mode).has_value()) return true;
        Seen::instance().insert(address, removals);
        return false;
      },
      false);
}

void put_manifest(const CallParts& parts, const std::string& class_name, const std::string& text) {
  guarded(
      [&] {
        cache::Cache& cache = *parts.cache;
        // Noted before the attempt, so that a manifest that cannot be stored is not made again at
        // every miss.
        Seen::instance().insert(Seen::address_of(parts),
                                parts.configuration->tiers.disk->removals());
        if (text.empty() || text.size() > kMostManifestBytes) return true;
        cache.keep_note(about_scope(parts.settings(), parts.scope), text, parts.mode);
        const std::string of_class = about_class(parts.settings(), class_name, parts.method);
        auto scopes = scopes_in(cache.find_note(of_class, parts.mode).value_or(""));
        scopes.erase(std::remove(scopes.begin(), scopes.end(), parts.scope), scopes.end());
        scopes.push_back(parts.scope);
        if (scopes.size() > kMostScopesOfClass) scopes.erase(scopes.begin());
        cache.keep_note(of_class, list_of(scopes), parts.mode);
        return true;
      },
      false);
}

std::string manifest_of(cache::Cache& cache, const std::string& scope) {
  return guarded(
      [&] { return note_in(cache, about_scope(cache.configuration()->settings, scope)); },
      std::string());
}

std::vector<std::string> scopes_of_class(cache::Cache& cache, const std::string& class_name,
                                         const std::string& method) {
  return guarded(
      [&] {
        return scopes_in(
            note_in(cache, about_class(cache.configuration()->settings, class_name, method)));
      },
      std::vector<std::string>());
}

}  // namespace modcache::module
