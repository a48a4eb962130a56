// SPDX-License-Identifier: Apache-2.0
//
// A request that changes something is taken from the server's own page, and from programs.
#pragma once

#include <httplib.h>

#include <string>
#include <vector>

namespace server {

// Throws Refusal where a browser sends the request for a page that is not this server's own, or
// that came under a name which somebody else may have pointed at this machine: valid are addresses,
// localhost and `names`. Other programs than browsers send no Origin, and pass.
void check_origin(const httplib::Request& request, const std::vector<std::string>& names);

}  // namespace server
