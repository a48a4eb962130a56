// SPDX-License-Identifier: Apache-2.0
#include "cache/context.h"

#include <array>
#include <cstring>

namespace modcache::cache {
namespace {

// Every piece with its length before it, so that no two lists of parts give one description.
void append_piece(std::string& out, std::string_view piece) {
  out += std::to_string(piece.size());
  out += ':';
  out += piece;
  out += ',';
}

void describe(const ContextParts& parts, std::string& out) {
  out.clear();
  append_piece(out, parts.name_space);
  append_piece(out, parts.scope);
  append_piece(out, parts.method);
  out += static_cast<char>(parts.form);
  append_piece(out, parts.arguments);
  append_piece(out, parts.autocast);
}

}  // namespace

ContextPtr make_context(const ContextParts& parts) {
  thread_local std::string description;
  thread_local ContextPtr last;
  describe(parts, description);
  if (last == nullptr || last->description != description) {
    last = std::make_shared<const store::Context>(
        store::Context{blake2b_128(description), std::string(parts.scope), description});
  }
  return last;
}

Digest128 address_of(const store::EntryId& id) {
  constexpr std::size_t kInlineKeyBytes = 240;
  std::array<char, 16 + kInlineKeyBytes> buffer;
  const Digest128& digest = id.context.digest;
  std::memcpy(buffer.data(), &digest.high, 8);
  std::memcpy(buffer.data() + 8, &digest.low, 8);
  if (id.key.size() <= kInlineKeyBytes) {
    std::memcpy(buffer.data() + 16, id.key.data(), id.key.size());
    return xxh3_128(buffer.data(), 16 + id.key.size());
  }
  Xxh3Hasher hasher;
  hasher.update(buffer.data(), 16);
  hasher.update(id.key.data(), id.key.size());
  return hasher.digest();
}

}  // namespace modcache::cache
