// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/reply.h"

#include <valkey/valkey.h>

#include <array>
#include <utility>

namespace modcache::backends {
namespace {

struct ErrorWord {
  std::string_view word;
  StatusCode code;
};

// Errors that say more than that the server cannot be used now.
constexpr std::array<ErrorWord, 8> kErrorWords{{{"OOM", StatusCode::kNoSpace},
                                                {"MISCONF", StatusCode::kForeign},
                                                {"NOREPLICAS", StatusCode::kForeign},
                                                {"READONLY", StatusCode::kForeign},
                                                {"NOPERM", StatusCode::kForeign},
                                                {"NOAUTH", StatusCode::kInvalidArgument},
                                                {"WRONGPASS", StatusCode::kInvalidArgument},
                                                {"DENIED", StatusCode::kInvalidArgument}}};

constexpr std::size_t kMostShownBytes = 200;

void replace_all(std::string& text, std::string_view old, std::string_view by) {
  if (old.empty()) return;
  for (std::size_t at = text.find(old); at != std::string::npos; at = text.find(old, at)) {
    text.replace(at, old.size(), by);
    at += by.size();
  }
}

SharedBytes bytes_in(const ReplyPtr& owner, const valkeyReply& reply) {
  if (reply.type != VALKEY_REPLY_STRING || reply.str == nullptr) return {};
  return {owner, reinterpret_cast<const std::byte*>(reply.str), reply.len};
}

}  // namespace

ReplyPtr take_reply(void* reply) {
  return {static_cast<valkeyReply*>(reply), [](valkeyReply* owned) { freeReplyObject(owned); }};
}

std::string without_secrets(std::string_view text, const remote::Address& address) {
  // Servers repeat the arguments of commands that they do not know, and cut them short.
  std::string shown(text.substr(0, text.find(", with args beginning with")));
  replace_all(shown, address.password, "***");
  replace_all(shown, address.user, "***");
  if (shown.size() > kMostShownBytes) shown = shown.substr(0, kMostShownBytes) + "...";
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown;
}

Status status_of(const ReplyPtr& reply, const remote::Address& address) {
  if (reply == nullptr) return Status::io_error("it did not reply");
  if (!is_error(reply)) return Status::ok();
  const std::string_view text = text_of(reply);
  const std::string_view word = text.substr(0, text.find(' '));
  StatusCode code = StatusCode::kIoError;
  for (const ErrorWord& known : kErrorWords) {
    if (known.word == word) code = known.code;
  }
  return {code, "it says: " + without_secrets(text, address)};
}

SharedBytes bytes_of(const ReplyPtr& reply) {
  return reply == nullptr ? SharedBytes() : bytes_in(reply, *reply);
}

SharedBytes bytes_of_element(const ReplyPtr& reply, std::size_t i) {
  return bytes_in(reply, *reply->element[i]);
}

bool is_error(const ReplyPtr& reply) {
  return reply != nullptr && reply->type == VALKEY_REPLY_ERROR;
}

bool is_array(const ReplyPtr& reply, std::size_t elements) {
  return reply != nullptr && reply->type == VALKEY_REPLY_ARRAY && reply->elements == elements;
}

bool is_null(const ReplyPtr& reply) { return reply == nullptr || reply->type == VALKEY_REPLY_NIL; }

long long integer_of(const ReplyPtr& reply) {
  return reply != nullptr && reply->type == VALKEY_REPLY_INTEGER ? reply->integer : 0;
}

std::string_view text_of(const ReplyPtr& reply) {
  if (reply == nullptr || reply->str == nullptr) return {};
  return {reply->str, reply->len};
}

}  // namespace modcache::backends
