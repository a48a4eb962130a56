// SPDX-License-Identifier: Apache-2.0
#include "browser_origin.h"

#include <arpa/inet.h>

#include <algorithm>

#include "refusal.h"

namespace server {
namespace {

// "[::1]:80" -> "::1", "localhost:80" -> "localhost"
std::string name_of(const std::string& host) {
  if (!host.empty() && host[0] == '[') return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.rfind(':'));
}

bool is_address(const std::string& name) {
  unsigned char parsed[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, name.c_str(), static_cast<void*>(parsed)) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), static_cast<void*>(parsed)) == 1;
}

}  // namespace

void check_origin(const httplib::Request& request, const std::vector<std::string>& names) {
  if (!request.has_header("Origin") && !request.has_header("Sec-Fetch-Site")) return;
  const std::string host = request.get_header_value("Host");
  const std::string origin = request.get_header_value("Origin");
  if (origin != "http://" + host && origin != "https://" + host) {
    throw Refusal(403, "this comes from a page of '" + origin.substr(0, 100) +
                           "'; valid are pages of this server, '" + host.substr(0, 100) + "'");
  }
  const std::string name = name_of(host);
  if (name == "localhost" || is_address(name) ||
      std::find(names.begin(), names.end(), name) != names.end()) {
    return;
  }
  throw Refusal(403, "the page came from '" + name.substr(0, 100) +
                         "'; valid are addresses, localhost, and what --name names");
}

}  // namespace server
