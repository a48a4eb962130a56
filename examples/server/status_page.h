// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace server {

// The HTML of the status page, with its style and script inside. It loads nothing else.
extern const char* const kStatusPage;

}  // namespace server
