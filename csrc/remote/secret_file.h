// SPDX-License-Identifier: Apache-2.0
//
// read_secret_file(): the content of a file that a secret is in, without the end of its line.
#pragma once

#include <string>

#include "base/result.h"

namespace modcache::remote {

// Follows links, as secrets are often mounted so. kInvalidArgument: it cannot be read, or is empty.
// The message has the path, `parameter`, which named it, and what it `holds`.
Result<std::string> read_secret_file(const std::string& path, const std::string& parameter,
                                     const std::string& holds);

}  // namespace modcache::remote
