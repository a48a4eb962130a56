// SPDX-License-Identifier: Apache-2.0
//
// The body of POST /predict: {"input": [[0.5, 1]], "id": "x"}, or "ids" with one for each row.
//
// The text comes from a stranger. It is read in one pass, without a tree of it in memory: what it
// becomes is bounded by its own size, whatever its nesting.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "arguments.h"

namespace server {

struct PredictRequest {
  at::Tensor input;
  std::vector<std::string> ids;  // an integer as its digits
  bool has_id = false;           // one id for all of the input
  bool has_ids = false;          // one for each row
};

struct InputForm {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;  // -1: any size. Empty: any shape
  std::int64_t most_rows = 4096;    // the length of the outermost list
};

InputForm input_form_of(const Configuration& configuration);

// Throws Refusal.
PredictRequest parse_predict_request(const std::string& body, const InputForm& form);

}  // namespace server
