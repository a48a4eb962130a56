// SPDX-License-Identifier: Apache-2.0
//
// Commands, and the replies of a server, as the rest of this component uses them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "remote/address.h"

struct valkeyReply;  // NOLINT(readability-identifier-naming): libvalkey's

namespace modcache::backends {

// Owns its arguments' bytes nowhere: they live as long as the exchange. `key` says which node of a
// cluster it goes to, and ends with a zero.
struct Command {
  std::vector<std::string_view> arguments;
  const std::string* key = nullptr;
};

// Null: there was no reply.
using ReplyPtr = std::shared_ptr<valkeyReply>;

ReplyPtr take_reply(void* reply);

// Ok unless the server replied with an error, whose message shows nothing of the address's
// credentials. kNoSpace: it is full. kForeign: it does not let us write. kInvalidArgument: it
// refused the credentials. kIoError: the rest, and no reply.
Status status_of(const ReplyPtr& reply, const remote::Address& address);

// The server's text as one line for a log: a server may repeat what it was sent, in any length.
std::string without_secrets(std::string_view text, const remote::Address& address);

// The reply's bytes, or those of its element i, without a copy; a null owner where they are no
// string.
SharedBytes bytes_of(const ReplyPtr& reply);
SharedBytes bytes_of_element(const ReplyPtr& reply, std::size_t i);

bool is_error(const ReplyPtr& reply);
bool is_array(const ReplyPtr& reply, std::size_t elements);
bool is_null(const ReplyPtr& reply);
long long integer_of(const ReplyPtr& reply);  // 0 where it is no integer
std::string_view text_of(const ReplyPtr& reply);

}  // namespace modcache::backends
