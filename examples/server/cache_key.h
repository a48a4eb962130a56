// SPDX-License-Identifier: Apache-2.0
//
// Under which keys the answer to a request is found.
//
//   "train/17"                            the id of the request, as training stores it
//   "content:" 64 digits                  no id: a hash of the input
//   "salt:" 64 digits ":id:" the id       the same under the salt of a tenant, which is hashed
//   "salt:" 64 digits ":content:" ...
//
// The hashes are cryptographic and of one length, and an id that begins like the lower three is
// refused: so no two of (salt, id, content) make the same key, whatever a client sends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "predict_request.h"

namespace server {

// Returns the one key of the whole input. Throws Refusal for an id that is not valid.
std::string key_of_input(const PredictRequest& request, const std::string& salt);

// Returns one key for each row. Throws Refusal, also where there is one id and not one row.
std::vector<std::string> keys_of_rows(const PredictRequest& request, const std::string& salt);

// Returns what stands for the key where a model takes int64 ids: the number that its digits are,
// not negative, and for all other keys a negative number made of 63 bits of their hash. Which two
// inputs got one number the cache notices by the sample of the input that it compares.
std::int64_t number_of_key(const std::string& key);

}  // namespace server
