// SPDX-License-Identifier: Apache-2.0
//
// The cache keys of a request.
//
//   "train/17"                          the request's id, as training stores it
//   "content:" 64 digits                no id: a hash of the input
//   "salt:" 64 digits ":train/17"       the same two for a tenant, whose salt is hashed
//   "salt:" 64 digits ":content:" ...
//
// Ids that begin with "content:" or "salt:" are refused, and the hashes are cryptographic and of
// one length. So two different triples of salt, id and content never share a key.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "predict_request.h"

namespace server {

// `salt` is the tenant's, or empty. All three throw HttpError for an id that is not valid.
// Returns one key for the whole input.
std::string key_for_input(const PredictRequest& request, const std::string& salt);
// Returns one key per row.
std::vector<std::string> keys_for_rows(const PredictRequest& request, const std::string& salt);
// Returns keys_for_rows() as int64 ids, for models that take those: the number that a key spells,
// else a negative number made of 63 bits of the key's hash. If two inputs get the same number by
// chance, the cache notices that the inputs differ.
at::Tensor ids_for_rows(const PredictRequest& request, const std::string& salt);

}  // namespace server
