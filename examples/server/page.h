// SPDX-License-Identifier: Apache-2.0
//
// The status page: one text with its style and script inside, which loads nothing from anywhere.
#pragma once

#include <string>

namespace server {

struct Page {
  std::string html;
  std::string content_security_policy;  // that only this page's own style and script run
};

// Makes it with a number that is used once, which the policy names. Any thread.
Page make_page();

}  // namespace server
