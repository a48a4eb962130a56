// SPDX-License-Identifier: Apache-2.0
//
// The model, in any of the forms that it may be saved in.
//
//   TorchScript, forward(x, key: str)          the model caches, with one key for the whole input
//   TorchScript, forward(x, keys: List[str])   the model caches, with one key per row
//   TorchScript, forward(x, ids: Tensor)       the same, with int64 ids
//   TorchScript, forward(x)                    the server caches the whole output
//   .pt2 package, forward(x, ids)              the model caches, with int64 ids
//   .pt2 package, forward(x)                   nothing is cached, as there is no key
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

#include "predict_request.h"

namespace server {

struct ServedModel {
  std::function<c10::IValue(const PredictRequest&, const std::string& salt)> forward;
  std::string description;
};

// Throws std::runtime_error. `max_concurrent_runs` is for .pt2 packages, whose further runs wait.
ServedModel load_model(const std::string& path, int max_concurrent_runs);

// Returns the model's output. Any thread. Throws HttpError: the model's own exceptions with
// `error_status` and one line of text.
c10::IValue run_model(const ServedModel& model, const PredictRequest& request,
                      const std::string& salt, int error_status);

}  // namespace server
