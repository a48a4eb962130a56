// SPDX-License-Identifier: Apache-2.0
//
// Observation: watches which operators the current thread (and the tasks it forks in TorchScript)
// dispatches, to learn whether random numbers were really drawn: dropout in evaluation draws none.
// Observations of one thread may be nested. One that ends in another thread than the one where it
// began counts as impure.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <string>

namespace modcache::module {

class Observation {
 public:
  Observation();
  ~Observation() { end(); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  void end();

  // Returns an empty text if the observed run was a function of its inputs, otherwise the reason
  // why not, such as "random numbers were drawn by aten::bernoulli_". REQUIRES: ended.
  const std::string& impure_because() const;

  // The record of this thread's operators. It is shared, so that it can end in any thread.
  struct Watch;

 private:
  std::shared_ptr<Watch> watch_;
};

}  // namespace modcache::module
