// SPDX-License-Identifier: Apache-2.0
#include "cache_key.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <charconv>
#include <utility>

#include "errors.h"

namespace server {
namespace {

const std::string kContent = "content:";
const std::string kSalt = "salt:";

// Calls an operator of modcache by its name, as any host may.
c10::IValue call_operator(const char* name, c10::IValue argument) {
  c10::Stack stack{std::move(argument)};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack.front();
}

// Returns 64 hexadecimal digits.
std::string hash_of(const c10::IValue& value) {
  return call_operator("cache::content_key", value).toStringRef();
}

// A header need not be UTF-8, which strings in the cache have to be. So bytes are hashed.
std::string hash_of_bytes(const std::string& bytes) {
  return hash_of(at::from_blob(const_cast<char*>(bytes.data()),
                               {static_cast<std::int64_t>(bytes.size())}, at::kByte));
}

std::string prefix_for(const std::string& salt) {
  return salt.empty() ? "" : kSalt + hash_of_bytes(salt) + ":";
}

const std::string& check_id(const std::string& id) {
  if (id.starts_with(kContent) || id.starts_with(kSalt)) {
    throw HttpError(400, "an id begins with '" + id.substr(0, id.find(':') + 1) +
                             "', which is reserved for keys that the server makes");
  }
  return id;
}

std::int64_t id_of(const std::string& key) {
  std::int64_t number = -1;
  std::from_chars(key.data(), key.data() + key.size(), number);
  if (number >= 0 && std::to_string(number) == key) return number;
  const std::uint64_t bits = std::stoull(hash_of_bytes(key).substr(0, 16), nullptr, 16);
  return static_cast<std::int64_t>(bits | (std::uint64_t{1} << 63));
}

}  // namespace

std::string key_for_input(const PredictRequest& request, const std::string& salt) {
  if (request.ids.size() > 1) {
    throw HttpError(400, "there are " + std::to_string(request.ids.size()) +
                             " 'ids'; this model has one key for its whole input: valid is 'id'");
  }
  if (request.id) return prefix_for(salt) + check_id(*request.id);
  if (request.ids.size() == 1) return prefix_for(salt) + check_id(request.ids[0]);
  return prefix_for(salt) + kContent + hash_of(request.input);
}

std::vector<std::string> keys_for_rows(const PredictRequest& request, const std::string& salt) {
  if (request.input.dim() == 0) {
    throw HttpError(400, "'input' is one number; this model takes rows");
  }
  if (request.id && request.input.size(0) != 1) {
    throw HttpError(400, "there is one 'id' for " + std::to_string(request.input.size(0)) +
                             " rows; valid are 'ids', one for each row");
  }
  std::vector<std::string> keys = request.ids;
  if (request.id) keys.push_back(*request.id);
  for (const std::string& id : keys) check_id(id);
  if (keys.empty()) {
    const c10::IValue hashes = call_operator("cache::content_keys", request.input);
    for (const c10::IValue& hash : hashes.toListRef()) {
      keys.push_back(kContent + hash.toStringRef());
    }
  }
  const std::string prefix = prefix_for(salt);
  for (std::string& key : keys) key.insert(0, prefix);
  return keys;
}

at::Tensor ids_for_rows(const PredictRequest& request, const std::string& salt) {
  std::vector<std::int64_t> ids;
  for (const std::string& key : keys_for_rows(request, salt)) ids.push_back(id_of(key));
  return at::tensor(ids);
}

}  // namespace server
