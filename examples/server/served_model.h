// SPDX-License-Identifier: Apache-2.0
//
// The model, in whichever form it was saved.
//
//   scripted or frozen, forward(x, key: str)           it caches, with one key for all of the input
//   scripted or frozen, forward(x, keys: List[str])    it caches, with one key for each row
//                       forward(x, ids: Tensor)        the same, with int64 ids
//   scripted or frozen, forward(x)                     the server caches its whole output
//   .pt2 package, forward(x, ids)                      it caches, with int64 ids for the rows
//   .pt2 package, forward(x)                           nothing is cached, as there is no key
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <string>

#include "predict_request.h"

namespace server {

class ServedModel {
 public:
  virtual ~ServedModel() = default;
  // Returns the model's output. Any thread, under InferenceMode. The model's own exceptions pass
  // through; a request that does not fit the model is a Refusal.
  virtual c10::IValue predict(const PredictRequest& request, const std::string& salt) const = 0;
  virtual std::string description() const = 0;
};

// The same, with the model's exceptions as a Refusal of that status, of one line.
c10::IValue predict_or_refuse(const ServedModel& model, const PredictRequest& request,
                              const std::string& salt, int status);

// Throws std::runtime_error with a text for people. `runs_at_once`: how many a .pt2 package makes.
std::unique_ptr<ServedModel> load_model(const std::string& path, int runs_at_once);
// The one for .pt2 packages.
std::unique_ptr<ServedModel> load_exported(const std::string& path, int runs_at_once);

}  // namespace server
