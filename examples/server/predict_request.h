// SPDX-License-Identifier: Apache-2.0
//
// The body of POST /predict: {"input": [[0.5, 1]], "id": "x"}, or "ids" with one id per row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace server {

// The inputs that the model takes.
struct InputSpec {
  std::string dtype = "float32";    // or float64, int64
  std::vector<std::int64_t> shape;  // -1: any size. Empty: any shape
  std::int64_t max_rows = 4096;     // size of the first dimension
};

struct PredictRequest {
  at::Tensor input;
  std::optional<std::string> id;  // names the whole input
  std::vector<std::string> ids;   // name the rows; empty if the request has none
};

at::ScalarType scalar_type(const InputSpec& spec);

// Throws HttpError.
PredictRequest parse_predict_request(const std::string& body, const InputSpec& spec);

}  // namespace server
