// SPDX-License-Identifier: Apache-2.0
//
// How a handler answers with an error.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace server {

// The client's mistake or a failure that the client should see. Handlers throw it, and the client
// gets {"error": message} with this HTTP status. The message says what was given and what is valid.
struct HttpError : std::runtime_error {
  HttpError(int http_status, const std::string& message)
      : std::runtime_error(message), status(http_status) {}
  int status;
};

// Returns the message of any exception, without the C++ backtrace that torch appends to its own.
inline std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace server
