// SPDX-License-Identifier: Apache-2.0
#include "cache/context.h"

#include <charconv>
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

std::string describe(const ContextParts& parts) {
  std::string out;
  append_piece(out, parts.name_space);
  append_piece(out, parts.scope);
  append_piece(out, parts.method);
  out += static_cast<char>(parts.form);
  append_piece(out, parts.arguments);
  append_piece(out, parts.autocast);
  return out;
}

// Takes one piece off the front of `text`. False: none begins there.
bool take_piece(std::string_view& text, std::string_view& piece) {
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.empty() || text[0] != ':' || text.size() < 2 || size > text.size() - 2) return false;
  piece = text.substr(1, size);
  if (text[size + 1] != ',') return false;
  text.remove_prefix(size + 2);
  return true;
}

}  // namespace

std::string description_prefix_of(std::string_view name_space) {
  std::string prefix;
  append_piece(prefix, name_space);
  return prefix;
}

bool unpack_context(std::string_view description, ContextParts& parts) {
  std::string_view text = description;
  if (!take_piece(text, parts.name_space) || !take_piece(text, parts.scope) ||
      !take_piece(text, parts.method) || text.empty()) {
    return false;
  }
  parts.form = static_cast<Form>(text[0]);
  text.remove_prefix(1);
  return (parts.form == Form::kWhole || parts.form == Form::kRow) &&
         take_piece(text, parts.arguments) && take_piece(text, parts.autocast) && text.empty();
}

bool unpack_context(const store::Context& context, ContextParts& parts) {
  return unpack_context(std::string_view(context.description), parts) &&
         parts.scope == context.scope && blake2b_128(context.description) == context.digest;
}

bool operator==(const ContextParts& a, const ContextParts& b) {
  // Most parts are empty, which std::string_view would call a function to compare.
  const auto are_same = [](std::string_view one, std::string_view other) {
    return one.size() == other.size() &&
           (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
  };
  return a.form == b.form && are_same(a.scope, b.scope) && are_same(a.method, b.method) &&
         are_same(a.arguments, b.arguments) && are_same(a.autocast, b.autocast) &&
         are_same(a.name_space, b.name_space);
}

ContextPtr make_context(const ContextParts& parts) {
  thread_local ContextPtr last;
  thread_local ContextParts parts_of_last;  // they point into its description
  if (last == nullptr || !(parts_of_last == parts)) {
    const std::string description = describe(parts);
    last = std::make_shared<const store::Context>(
        store::Context{blake2b_128(description), std::string(parts.scope), description});
    unpack_context(last->description, parts_of_last);
  }
  return last;
}

}  // namespace modcache::cache
