// SPDX-License-Identifier: Apache-2.0
#include "cache_key.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>
#include <modcache/cache.h>

#include <charconv>
#include <limits>

#include "refusal.h"

namespace server {
namespace {

constexpr const char* kContent = "content:";
constexpr const char* kSalt = "salt:";
constexpr std::size_t kLongestSalt = 256;  // bytes

std::string hash_of(const c10::IValue& value) {
  return modcache::detail::call([] { return "cache::content_key"; }, value).toStringRef();
}

bool begins_with(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

std::string prefix_of(const std::string& salt) {
  if (salt.empty()) return {};
  if (salt.size() > kLongestSalt) {
    throw Refusal(400, "the salt has " + std::to_string(salt.size()) +
                           " bytes; valid are at most " + std::to_string(kLongestSalt));
  }
  // As text it would have to be UTF-8, which a header need not be.
  const at::Tensor bytes = at::from_blob(const_cast<char*>(salt.data()),
                                         {static_cast<std::int64_t>(salt.size())}, at::kByte);
  return kSalt + hash_of(bytes) + ":";
}

std::string key_of_id(const std::string& id, const std::string& prefix) {
  if (!prefix.empty()) return prefix + "id:" + id;
  for (const char* reserved : {kContent, kSalt}) {
    if (begins_with(id, reserved)) {
      throw Refusal(
          400, std::string("an id begins with '") + reserved + "'; such keys are the server's own");
    }
  }
  return id;
}

}  // namespace

std::string key_of_input(const PredictRequest& request, const std::string& salt) {
  const std::string prefix = prefix_of(salt);
  if (request.has_ids && request.ids.size() != 1) {
    throw Refusal(400, "this model has one key for all of its input: valid is one 'id'");
  }
  if (!request.ids.empty()) return key_of_id(request.ids[0], prefix);
  return prefix + kContent + hash_of(request.input);
}

std::vector<std::string> keys_of_rows(const PredictRequest& request, const std::string& salt) {
  if (request.input.dim() == 0) {
    throw Refusal(400, "'input' is one number; this model takes rows");
  }
  const std::string prefix = prefix_of(salt);
  const auto rows = static_cast<std::size_t>(request.input.size(0));
  if (request.has_id && rows != 1) {
    throw Refusal(400, "there is one 'id', and 'input' has " + std::to_string(rows) +
                           " rows; valid are 'ids', one for each row");
  }
  std::vector<std::string> keys;
  keys.reserve(rows);
  for (const std::string& id : request.ids) keys.push_back(key_of_id(id, prefix));
  for (std::size_t row = keys.size(); row < rows; ++row) {
    keys.push_back(prefix + kContent + hash_of(request.input[static_cast<std::int64_t>(row)]));
  }
  return keys;
}

std::int64_t number_of_key(const std::string& key) {
  std::int64_t number = -1;
  const char* end = key.data() + key.size();
  const auto [last, error] = std::from_chars(key.data(), end, number);
  if (error == std::errc() && last == end && number >= 0 && std::to_string(number) == key) {
    return number;
  }
  std::uint64_t bits = 0;
  const at::Tensor bytes = at::from_blob(const_cast<char*>(key.data()),
                                         {static_cast<std::int64_t>(key.size())}, at::kByte);
  const std::string hash = hash_of(bytes);
  std::from_chars(hash.data(), hash.data() + 16, bits, 16);
  return static_cast<std::int64_t>(bits | (std::uint64_t{1} << 63));
}

}  // namespace server
