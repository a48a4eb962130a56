// SPDX-License-Identifier: Apache-2.0
#include "module/manifest.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "cache/cache.h"
#include "module/class_names.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

using tensor::Node;

// Keys begin with the mark as well, so that no prefix that is cleared covers them.
using namespace std::string_view_literals;
constexpr std::string_view kOwnScope = "\0manifests"sv;
constexpr std::string_view kOfScope = "\0scope/"sv;
constexpr std::string_view kOfClass = "\0class/"sv;
static_assert(kOwnScope.front() == store::kOwnScopeMark);

cache::ContextPtr context_in(const cache::Session& session) {
  return cache::make_context(
      {session.settings().name_space, kOwnScope, "", cache::Form::kWhole, "", ""});
}

void put_value(cache::Session& session, const std::string& key, Node root) {
  const auto value = tensor::WholeValue::copy_of({std::move(root), {}, {}}, std::nullopt,
                                                 cache::StoredDtype::kKeep);
  session.put_aside({context_in(session), key, {}}, cache::Entry{value, {}, std::nullopt});
}

std::string key_of_scope(const std::string& scope) { return std::string(kOfScope) + scope; }

// A tree of kind None where there is nothing.
Node value_at(cache::Session& session, const std::string& key) {
  const cache::EntryPtr entry = session.peek({context_in(session), key, {}});
  if (entry != nullptr) return static_cast<const tensor::WholeValue&>(*entry->value).root();
  Node none;
  none.kind = Node::Kind::kNone;
  return none;
}

Node node_of(const std::string& text) {
  Node node;
  node.kind = Node::Kind::kString;
  node.text = text;
  return node;
}

std::string key_of_class(const std::string& class_name, const std::string& method) {
  return std::string(kOfClass) + class_name + '.' + method;
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
        if (!session->contains({context_in(*session), key_of_scope(scope), {}})) return true;
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
        put_value(*session, key_of_scope(scope), node_of(text));
        const std::string key = key_of_class(class_name, method);
        Node scopes = value_at(*session, key);
        if (scopes.kind != Node::Kind::kList) {
          scopes = Node{};
          scopes.kind = Node::Kind::kList;
          scopes.types = {"str"};
        }
        auto& items = scopes.children;
        const Node latest = node_of(scope);
        items.erase(std::remove(items.begin(), items.end(), latest), items.end());
        items.push_back(latest);
        if (items.size() > kMostScopesOfClass) items.erase(items.begin());
        put_value(*session, key, std::move(scopes));
        seen().insert(Seen::address_of(*session, scope), session->removals());
        return true;
      },
      false);
}

std::string manifest_of(const std::string& scope) {
  return guarded(
      [&] {
        const Node found = value_at(*cache::Cache::instance().session(), key_of_scope(scope));
        return found.kind == Node::Kind::kString ? found.text : std::string();
      },
      std::string());
}

std::vector<std::string> scopes_of_class(const std::string& class_name, const std::string& method) {
  return guarded(
      [&] {
        std::vector<std::string> scopes;
        const Node found =
            value_at(*cache::Cache::instance().session(), key_of_class(class_name, method));
        if (found.kind != Node::Kind::kList) return scopes;
        for (const Node& item : found.children) scopes.push_back(item.text);
        return scopes;
      },
      std::vector<std::string>());
}

std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const std::string class_name = class_name_of(*module);
  std::string text = "{\"format\":1,";
  append_member(text, "face", "torchscript");
  append_member(text, "scope", scope);
  append_member(text, "class", class_name);
  append_member(text, "method", method);
  append_member(text, "torch", TORCH_VERSION);
  text += "\"created_us\":" + std::to_string(now_us) + ",\"pid\":" + std::to_string(::getpid());
  if (with_weights) {
    if (const auto pieces = identity_of(module, method)->pieces(module)) {
      append_pieces(text, *pieces);
    }
  }
  return text + '}';
}

}  // namespace modcache::module
