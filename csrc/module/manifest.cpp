// SPDX-License-Identifier: Apache-2.0
#include "module/manifest.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/fork.h"
#include "cache/cache.h"
#include "module/class_names.h"

namespace modcache::module {
namespace {

std::string about(const cache::Session& session, const char* what, const std::string& name) {
  return what + session.settings().name_space + '\n' + name;
}

std::string about_scope(const cache::Session& session, const std::string& scope) {
  return about(session, "manifest ", scope);
}

std::string about_class(const cache::Session& session, const std::string& class_name,
                        const std::string& method) {
  return about(session, "scopes ", class_name + '.' + method);
}

// A scope may hold any character: each is written with its length.
std::string list_of(const std::vector<std::string>& scopes) {
  std::string text;
  for (const std::string& scope : scopes) text += std::to_string(scope.size()) + ' ' + scope + '\n';
  return text;
}

// For looks that are not to make a directory.
std::string note_in(cache::Session& session, const std::string& about) {
  const cache::Mode mode = cache::Cache::instance().mode();
  return session.find_note(about, may_read(mode) ? cache::Mode::kRead : mode).value_or("");
}

// As many as are whole.
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

// The scopes that this process has seen a manifest of, and the directory's count of removals up to
// which that is known to be so.
class Seen {
 public:
  Seen() { hold_across_fork(mutex_); }

  bool contains(const Digest128& scope, std::uint64_t removals) {
    MutexLock lock(mutex_);
    const auto known = removals_.find(scope);
    return known != removals_.end() && known->second == removals;
  }
  void insert(const Digest128& scope, std::uint64_t removals) {
    MutexLock lock(mutex_);
    if (removals_.size() >= kMost) removals_.clear();
    removals_[scope] = removals;
  }

  static Digest128 address_of(const cache::Session& session, const std::string& scope) {
    Xxh3Hasher hasher;
    hasher.add(session.settings().dir);
    hasher.add(session.settings().name_space);
    hasher.add(scope);
    return hasher.digest();
  }

 private:
  static constexpr std::size_t kMost = 1 << 12;

  Mutex mutex_;
  std::unordered_map<Digest128, std::uint64_t, Digest128Hash> removals_ MODCACHE_GUARDED_BY(mutex_);
};

// Never destroyed: threads of the host may call while the process exits.
Seen& seen() {
  static auto* const instance = new Seen;
  return *instance;
}

// What a cache's failure must not become: an exception in a model.
template <typename Function, typename Otherwise>
Otherwise guarded(Function&& function, Otherwise otherwise) {
  try {
    return function();
  } catch (const std::exception&) {
    return otherwise;
  }
}

void append_json(std::string& out, const std::string& text) {
  static const char* const digits = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_member(std::string& out, const char* name, const std::string& text) {
  append_json(out, name);
  out += ':';
  append_json(out, text);
  out += ',';
}

// {"name":"16 hexadecimal digits",...}
class DigestsText {
 public:
  void add(const std::string& name, const Digest128& digest) {
    if (text_.size() > 1) text_ += ',';
    append_json(text_, name);
    text_ += ':';
    append_json(text_, digest.hex().substr(0, 16));
  }
  std::string finish() { return text_ + '}'; }

 private:
  std::string text_ = "{";
};

void append_pieces(std::string& out, const Identity::Pieces& pieces) {
  DigestsText code;
  for (const auto& [name, digest] : pieces.functions) code.add(name, digest);
  DigestsText tensors;
  DigestsText attributes;
  for (const auto& attribute : pieces.attributes) {
    (attribute.is_tensor ? tensors : attributes).add(attribute.path, attribute.digest);
  }
  out += ",\"code\":" + code.finish();
  out += ",\"attributes\":" + attributes.finish();
  const std::string of_tensors = tensors.finish();
  if (out.size() + of_tensors.size() < kMostManifestBytes) out += ",\"tensors\":" + of_tensors;
}

}  // namespace

bool lacks_manifest(const std::string& scope) {
  return guarded(
      [&] {
        auto& cache = cache::Cache::instance();
        if (scope.empty() || !may_write(cache.mode())) return false;
        const cache::SessionPtr session = cache.session();
        const Digest128 address = Seen::address_of(*session, scope);
        const std::uint64_t removals = session->removals();
        if (seen().contains(address, removals)) return false;
        const auto note = session->find_note(about_scope(*session, scope), cache.mode());
        if (!note.has_value()) return true;
        seen().insert(address, removals);
        return false;
      },
      false);
}

void put_manifest(const std::string& scope, const std::string& class_name,
                  const std::string& method, const std::string& text) {
  guarded(
      [&] {
        const cache::SessionPtr session = cache::Cache::instance().session();
        // One attempt: what cannot be kept now is not made again at every miss.
        seen().insert(Seen::address_of(*session, scope), session->removals());
        if (text.empty() || text.size() > kMostManifestBytes) return true;
        const cache::Mode mode = cache::Cache::instance().mode();
        session->keep_note(about_scope(*session, scope), text, mode);
        const std::string of_class = about_class(*session, class_name, method);
        auto scopes = scopes_in(session->find_note(of_class, mode).value_or(""));
        scopes.erase(std::remove(scopes.begin(), scopes.end(), scope), scopes.end());
        scopes.push_back(scope);
        if (scopes.size() > kMostScopesOfClass) scopes.erase(scopes.begin());
        session->keep_note(of_class, list_of(scopes), mode);
        return true;
      },
      false);
}

std::string manifest_of(const std::string& scope) {
  return guarded(
      [&] {
        const cache::SessionPtr session = cache::Cache::instance().session();
        return note_in(*session, about_scope(*session, scope));
      },
      std::string());
}

std::vector<std::string> scopes_of_class(const std::string& class_name, const std::string& method) {
  return guarded(
      [&] {
        const cache::SessionPtr session = cache::Cache::instance().session();
        return scopes_in(note_in(*session, about_class(*session, class_name, method)));
      },
      std::vector<std::string>());
}

std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights) {
  const std::string class_name = class_name_of(*module);
  std::string text = "{\"format\":1,";
  append_member(text, "face", "torchscript");
  append_member(text, "scope", scope);
  append_member(text, "class", class_name);
  append_member(text, "method", method);
  append_member(text, "torch", TORCH_VERSION);
  text += "\"created_us\":" + std::to_string(now_us()) + ",\"pid\":" + std::to_string(::getpid());
  if (with_weights) {
    if (const auto pieces = identity_of(module, method)->pieces(module)) {
      append_pieces(text, *pieces);
    }
  }
  return text + '}';
}

}  // namespace modcache::module
