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

std::string about(cache::Cache& cache, const char* what, const std::string& name) {
  return what + cache.configuration()->settings.name_space + '\n' + name;
}

std::string about_scope(cache::Cache& cache, const std::string& scope) {
  return about(cache, "manifest ", scope);
}

std::string about_class(cache::Cache& cache, const std::string& class_name,
                        const std::string& method) {
  return about(cache, "scopes ", class_name + '.' + method);
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

  static Digest128 address_of(cache::Cache& cache, const std::string& scope) {
    const cache::ConfigurationPtr configuration = cache.configuration();
    const cache::Settings& settings = configuration->settings;
    return store::address_of(store::address_of(xxh3_128(settings.dir), settings.name_space), scope);
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

bool lacks_manifest(cache::Cache& cache, const std::string& scope) {
  return guarded(
      [&] {
        if (scope.empty() || !may_write(cache.mode())) return false;
        const Digest128 address = Seen::address_of(cache, scope);
        const std::uint64_t removals = cache.removals();
        if (Seen::instance().contains(address, removals)) return false;
        const auto note = cache.find_note(about_scope(cache, scope), cache.mode());
        if (!note.has_value()) return true;
        Seen::instance().insert(address, removals);
        return false;
      },
      false);
}

void put_manifest(cache::Cache& cache, const std::string& scope, const std::string& class_name,
                  const std::string& method, const std::string& text) {
  guarded(
      [&] {
        // Noted before the attempt, so that a manifest that cannot be stored is not made again at
        // every miss.
        Seen::instance().insert(Seen::address_of(cache, scope), cache.removals());
        if (text.empty() || text.size() > kMostManifestBytes) return true;
        const cache::Mode mode = cache.mode();
        cache.keep_note(about_scope(cache, scope), text, mode);
        const std::string of_class = about_class(cache, class_name, method);
        auto scopes = scopes_in(cache.find_note(of_class, mode).value_or(""));
        scopes.erase(std::remove(scopes.begin(), scopes.end(), scope), scopes.end());
        scopes.push_back(scope);
        if (scopes.size() > kMostScopesOfClass) scopes.erase(scopes.begin());
        cache.keep_note(of_class, list_of(scopes), mode);
        return true;
      },
      false);
}

std::string manifest_of(cache::Cache& cache, const std::string& scope) {
  return guarded([&] { return note_in(cache, about_scope(cache, scope)); }, std::string());
}

std::vector<std::string> scopes_of_class(cache::Cache& cache, const std::string& class_name,
                                         const std::string& method) {
  return guarded([&] { return scopes_in(note_in(cache, about_class(cache, class_name, method))); },
                 std::vector<std::string>());
}

}  // namespace modcache::module
