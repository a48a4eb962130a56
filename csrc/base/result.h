// SPDX-License-Identifier: Apache-2.0
//
// Result<T>: a value, or the Status that says why there is none (C++20 has no std::expected).
// REQUIRES of value(): is_ok(). A Result is never built from an ok Status.
#pragma once

#include <cassert>
#include <utility>
#include <variant>

#include "base/status.h"

namespace modcache {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!std::get<Status>(state_).is_ok());
  }

  bool is_ok() const { return std::holds_alternative<T>(state_); }
  bool is_not_found() const { return !is_ok() && std::get<Status>(state_).is_not_found(); }

  const T& value() const& { return std::get<T>(state_); }
  T& value() & { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }

  // The error, or ok when there is a value.
  Status status() const { return is_ok() ? Status::ok() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace modcache

// Returns from the enclosing function (which returns Status or Result) unless `expr` is ok.
#define MODCACHE_RETURN_IF_ERROR(expr)                      \
  do {                                                      \
    ::modcache::Status modcache_status_ = (expr);           \
    if (!modcache_status_.is_ok()) return modcache_status_; \
  } while (false)

// Assigns the value of a Result to a variable, which may be declared there, or returns its error
// from the enclosing function (which returns Status or Result):
//     MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(path, mode));
//     MODCACHE_ASSIGN_OR_RETURN(file_, file_system.open(path, mode));
#define MODCACHE_ASSIGN_OR_RETURN(variable, ...) \
  MODCACHE_ASSIGN_OR_RETURN_VIA(MODCACHE_RESULT_OF_LINE(__LINE__), variable, __VA_ARGS__)
#define MODCACHE_ASSIGN_OR_RETURN_VIA(result, variable, ...) \
  auto result = (__VA_ARGS__);                               \
  if (!result.is_ok()) return result.status();               \
  variable = std::move(result).value()
#define MODCACHE_RESULT_OF_LINE(line) MODCACHE_RESULT_OF_LINE_NUMBER(line)
#define MODCACHE_RESULT_OF_LINE_NUMBER(line) modcache_result_##line
