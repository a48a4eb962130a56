// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "registration.h"
#include "tensor/content_key.h"

namespace modcache::ops {
namespace {

c10::List<std::string> list_of(const std::vector<std::string>& texts) {
  return c10::List<std::string>(c10::ArrayRef<std::string>(texts));
}

template <typename Keys>
Keys value_or_throw(const char* op, Result<Keys> keys) {
  check_ok(op, keys.status());
  return std::move(keys).value();
}

void content_key(const c10::OperatorHandle&, Stack* stack) {
  constexpr const char* kOp = "cache::content_key";
  std::string key = value_or_throw(kOp, tensor::content_key(last(*stack, 1)[0]));
  replace(*stack, 1, std::move(key));
}

void content_keys(const c10::OperatorHandle&, Stack* stack) {
  constexpr const char* kOp = "cache::content_keys";
  auto keys = value_or_throw(kOp, tensor::content_keys(last(*stack, 1)[0]));
  replace(*stack, 1, list_of(keys));
}

// An input that Python took apart: one key for all of it, or one per row.
void content_keys_of_parts(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = last(*stack, 3);
  const tensor::TakenApart parts{arguments[0].toStringRef(), arguments[1].toListRef()};
  const std::vector<std::string> keys =
      arguments[2].toBool()
          ? value_or_throw("content_keys", tensor::content_keys(parts))
          : std::vector{value_or_throw("content_key", tensor::content_key(parts))};
  replace(*stack, 3, list_of(keys));
}

}  // namespace

void register_content_keys(torch::Library& m) {
  define(m, "content_key(Any input) -> str", boxed<&content_key>());
  define(m, "content_keys(Any input) -> str[]", boxed<&content_keys>());
  define(m, "_content_keys(str structure, Any[] leaves, bool are_rows) -> str[]",
         boxed<&content_keys_of_parts>());
}

}  // namespace modcache::ops
