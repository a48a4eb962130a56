// SPDX-License-Identifier: Apache-2.0
//
// Whether a request that changes something may come from where it comes from.
#pragma once

#include <httplib.h>

#include <string>
#include <vector>

namespace server {

// Throws Refusal where a browser sends the request for a page that is not this server's own, or
// that came under a name which somebody else may have pointed at this machine: valid are addresses,
// localhost and `names`. What is no browser sends no Origin, and passes.
void check_origin(const httplib::Request& request, const std::vector<std::string>& names);

}  // namespace server
