// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace modcache::triton_cache {
namespace {

constexpr const char* kSettings[] = {
    "dir",       "mode", "memory", "disk",       "max_age",   "durability", "policy",
    "namespace", "io",   "log",    "min_run_us", "admission", "remote",     "remote_timeout_ms",
    "remote_ttl"};

std::string valid_settings() {
  std::string valid;
  for (const char* name : kSettings) {
    if (!valid.empty()) valid += ", ";
    valid += name;
  }
  return valid;
}

}  // namespace

Result<cache::Options> parse_config(std::string_view config) {
  const auto parsed = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return Status::invalid_argument(
        "the configuration is no JSON object; give settings as --cache-config modcache,dir=DIR; "
        "valid settings are: " +
        valid_settings());
  }
  cache::Options options;
  for (const auto& [name, value] : parsed.items()) {
    if (std::find(std::begin(kSettings), std::end(kSettings), name) == std::end(kSettings)) {
      return Status::invalid_argument("unknown setting '" + name +
                                      "'; valid settings are: " + valid_settings());
    }
    if (!value.is_string() && !value.is_number()) {
      return Status::invalid_argument("setting '" + name + "' is a JSON " + value.type_name() +
                                      ", but must be a string or a number");
    }
    options.emplace(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return options;
}

}  // namespace modcache::triton_cache
