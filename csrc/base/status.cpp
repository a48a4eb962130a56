// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <utility>

namespace modcache {

Status::Status(StatusCode code, std::string message)
    : code_(code), message_(std::make_unique<const std::string>(std::move(message))) {}

void Status::copy_message(const std::string& message) {
  message_ = std::make_unique<const std::string>(message);
}

const std::string& Status::message() const {
  static const auto* const empty = new std::string();  // outlives the statics that log at exit
  return message_ == nullptr ? *empty : *message_;
}

Status Status::not_found(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}
Status Status::corruption(std::string message) {
  return {StatusCode::kCorruption, std::move(message)};
}
Status Status::unsupported_version(std::string message) {
  return {StatusCode::kUnsupportedVersion, std::move(message)};
}
Status Status::io_error(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
Status Status::busy(std::string message) { return {StatusCode::kBusy, std::move(message)}; }
Status Status::no_space(std::string message) { return {StatusCode::kNoSpace, std::move(message)}; }
Status Status::invalid_argument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
Status Status::foreign(std::string message) { return {StatusCode::kForeign, std::move(message)}; }

}  // namespace modcache
