// SPDX-License-Identifier: Apache-2.0
//
// Status: the outcome of every fallible operation below the operator.
// Components below `tensor` throw nothing (std::bad_alloc aside): errno, SQLite and cereal
// failures become a Status on the line where they arise. A miss is `kNotFound`, which is an
// answer and not a failure.
#pragma once

#include <memory>
#include <string>

// The compiler moves calls of such functions, and what leads to them, out of the way.
#define MODCACHE_COLD __attribute__((cold, noinline))

namespace modcache {

enum class StatusCode {
  kOk,
  kNotFound,            // a miss: the normal negative answer
  kCorruption,          // bytes that fail a bound or a checksum; they were not used
  kUnsupportedVersion,  // written by another version of modcache; left untouched
  kIoError,             // the file system said no
  kBusy,                // a bounded wait for another process ran out
  kNoSpace,             // disk or budget full
  kInvalidArgument,     // the caller's mistake; the message says what is valid
  kForeign,  // no file of ours is there but a link, a pipe, another user's file ...; left alone
};

// Ok and a miss cost no allocation. What makes or copies a message is compiled once, as cold code,
// so that the paths without failures stay short.
class [[nodiscard]] Status {
 public:
  Status() = default;
  MODCACHE_COLD Status(StatusCode code, std::string message);
  Status(const Status& other) : code_(other.code_) {
    if (other.message_ != nullptr) copy_message(*other.message_);
  }
  Status(Status&& other) noexcept = default;
  Status& operator=(const Status& other) { return *this = Status(other); }
  Status& operator=(Status&& other) noexcept = default;
  ~Status() = default;

  static Status ok() { return {}; }
  static Status not_found() { return Status(StatusCode::kNotFound); }
  MODCACHE_COLD static Status not_found(std::string message);
  MODCACHE_COLD static Status corruption(std::string message);
  MODCACHE_COLD static Status unsupported_version(std::string message);
  MODCACHE_COLD static Status io_error(std::string message);
  MODCACHE_COLD static Status busy(std::string message);
  MODCACHE_COLD static Status no_space(std::string message);
  MODCACHE_COLD static Status invalid_argument(std::string message);
  MODCACHE_COLD static Status foreign(std::string message);

  bool is_ok() const { return code_ == StatusCode::kOk; }
  bool is_not_found() const { return code_ == StatusCode::kNotFound; }
  StatusCode code() const { return code_; }
  const std::string& message() const;

 private:
  explicit Status(StatusCode code) : code_(code) {}
  MODCACHE_COLD void copy_message(const std::string& message);

  StatusCode code_ = StatusCode::kOk;
  std::unique_ptr<const std::string> message_;  // null: empty
};

}  // namespace modcache
