// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace modcache::tensor {

// The message of an exception without the stack trace that torch's own append, for log lines and
// statuses.
std::string text_of(const std::exception& error);

}  // namespace modcache::tensor
