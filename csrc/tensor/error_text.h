// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace modcache::tensor {

// What an exception says, without the stack that torch's own carry: for log lines and statuses.
std::string text_of(const std::exception& error);

}  // namespace modcache::tensor
