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

SharedBytes bytes_in(const ReplyPtr& owner, const valkeyReply& reply) {
  if (reply.type != VALKEY_REPLY_STRING || reply.str == nullptr) return {};
  return {owner, reinterpret_cast<const std::byte*>(reply.str), reply.len};
}

}  // namespace

ReplyPtr take_reply(void* reply) {
  return {static_cast<valkeyReply*>(reply), [](valkeyReply* owned) { freeReplyObject(owned); }};
}

Status status_of_error(std::string_view text) {
  const std::string_view word = text.substr(0, text.find(' '));
  for (const ErrorWord& known : kErrorWords) {
    if (known.word == word) return {known.code, "it says: " + std::string(text)};
  }
  return Status::io_error("it says: " + std::string(text));
}

Status status_of(const ReplyPtr& reply) {
  if (reply == nullptr) return Status::io_error("it did not reply");
  return is_error(reply) ? status_of_error(text_of(reply)) : Status::ok();
}

SharedBytes bytes_of(const ReplyPtr& reply) {
  return reply == nullptr ? SharedBytes() : bytes_in(reply, *reply);
}

SharedBytes bytes_of_element(const ReplyPtr& reply, std::size_t i) {
  return bytes_in(reply, *reply->element[i]);
}

std::vector<std::string> names_of_element(const ReplyPtr& reply, std::size_t i) {
  const valkeyReply& array = *reply->element[i];
  std::vector<std::string> names;
  if (array.type != VALKEY_REPLY_ARRAY) return names;
  for (std::size_t k = 0; k < array.elements; ++k) {
    const SharedBytes name = bytes_in(reply, *array.element[k]);
    if (name.owner != nullptr) names.emplace_back(name.view());
  }
  return names;
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
