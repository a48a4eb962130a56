// SPDX-License-Identifier: Apache-2.0
//
// KeptAttributes: the attributes of a scripted module and of all objects in it, and the state of
// the CPU's random generator, as they are now. A run that the caller did not ask for (a trial of a
// row of another length) may write some of them, for instance the greatest length that was seen,
// and the model must not notice.
//
// What is changed in place, such as the elements of a tensor or a list, is not restored. For one
// thread; another one that writes an attribute meanwhile loses what it wrote.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "module/identity/inventory.h"

namespace modcache::module {

class KeptAttributes {
 public:
  explicit KeptAttributes(const ObjectPtr& module);

  // Puts back each attribute that is another value than it was.
  void restore() const;

 private:
  struct Kept {
    ObjectPtr object;
    std::vector<at::IValue> values;
  };

  std::vector<Kept> kept_;
  at::Tensor random_state_;
};

}  // namespace modcache::module
