// SPDX-License-Identifier: Apache-2.0
//
// Status: the outcome of every fallible operation below the operator.
// Rooms below `module` throw nothing (std::bad_alloc aside): errno, SQLite and cereal
// failures become a Status on the line where they arise. A miss is `kNotFound`, which is an
// answer and not a failure.
#pragma once

#include <string>
#include <utility>

namespace modcache {

enum class StatusCode {
  kOk,
  kNotFound,            // a miss: the normal negative answer
  kCorruption,          // bytes that fail a bound or a checksum; they were not used
  kUnsupportedVersion,  // written by a newer modcache; left untouched
  kIoError,             // the file system said no
  kBusy,                // a bounded wait for another process ran out
  kNoSpace,             // disk or budget full
  kInvalidArgument,     // the caller's mistake; the message says what is valid
  kForeign,  // no file of ours is there but a link, a pipe, another user's file ...; left alone
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  static Status not_found(std::string message = {}) {
    return {StatusCode::kNotFound, std::move(message)};
  }
  static Status corruption(std::string message) {
    return {StatusCode::kCorruption, std::move(message)};
  }
  static Status unsupported_version(std::string message) {
    return {StatusCode::kUnsupportedVersion, std::move(message)};
  }
  static Status io_error(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
  static Status busy(std::string message) { return {StatusCode::kBusy, std::move(message)}; }
  static Status no_space(std::string message) { return {StatusCode::kNoSpace, std::move(message)}; }
  static Status invalid_argument(std::string message) {
    return {StatusCode::kInvalidArgument, std::move(message)};
  }

  static Status foreign(std::string message) { return {StatusCode::kForeign, std::move(message)}; }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  bool is_not_found() const { return code_ == StatusCode::kNotFound; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace modcache
