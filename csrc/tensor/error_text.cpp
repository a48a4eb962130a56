// SPDX-License-Identifier: Apache-2.0
#include "tensor/error_text.h"

#include <c10/util/Exception.h>

namespace modcache::tensor {

std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace modcache::tensor
