// SPDX-License-Identifier: Apache-2.0
//
// Why a request is not answered as it asked.
#pragma once

#include <stdexcept>
#include <string>

namespace server {

// Thrown while a request is handled. The text says what was given, and what is valid; it goes to
// whoever asked.
class Refusal : public std::runtime_error {
 public:
  Refusal(int status, const std::string& reason) : std::runtime_error(reason), status_(status) {}
  int status() const { return status_; }  // of HTTP

 private:
  int status_;
};

}  // namespace server
