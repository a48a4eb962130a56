// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/plugin.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/without_throwing.h"
#include "triton_cache/response.h"

namespace modcache::triton_cache {
namespace {

constexpr std::uint32_t kCacheApiMajor = 0;
constexpr std::uint32_t kCacheApiMinor = 1;
constexpr std::uint32_t kServerApiMajor = 1;

struct Version {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  std::string text() const { return std::to_string(major) + '.' + std::to_string(minor); }
};

// How the server packs responses is its own affair, and may change with its version.
Result<std::string> packing_of(const TritonApi& api) {
  Version cache;
  Version server;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.cache_api_version(&cache.major, &cache.minor)));
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.server_api_version(&server.major, &server.minor)));
  if (cache.major != kCacheApiMajor || cache.minor < kCacheApiMinor ||
      server.major != kServerApiMajor) {
    return Status::unsupported_version(
        "this cache is made for version 0.1 of Triton's cache API and 1.x of its server API; this "
        "server has " +
        cache.text() + " and " + server.text());
  }
  return "Triton API " + server.text();
}

void log_to_server(const TritonApi& api, LogLevel level, const std::string& message) {
  const ServerLogLevel server_level = level == LogLevel::kError     ? ServerLogLevel::kError
                                      : level == LogLevel::kWarning ? ServerLogLevel::kWarning
                                                                    : ServerLogLevel::kInfo;
  const Status ignored = status_of(api, api.log_message(server_level, "triton_cache", __LINE__,
                                                        ("modcache: " + message).c_str()));
  (void)ignored;
}

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

Result<std::unique_ptr<Plugin>> Plugin::make(const TritonApi& api, const char* config) {
  set_log_sink(
      [api](LogLevel level, const std::string& message) { log_to_server(api, level, message); });
  MODCACHE_ASSIGN_OR_RETURN(const auto packing, packing_of(api));
  MODCACHE_ASSIGN_OR_RETURN(auto responses,
                            ResponseCache::create(config != nullptr ? config : "", packing));
  return std::unique_ptr<Plugin>(new Plugin(api, std::move(responses)));
}

TritonApi::Error Plugin::initialize(const TritonApi& api, const char* config,
                                    std::unique_ptr<Plugin>& plugin) noexcept {
  const Status status = without_throwing([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(plugin, make(api, config));
    return Status::ok();
  });
  if (status.is_ok()) return nullptr;
  const bool is_unsupported = status.code() == StatusCode::kUnsupportedVersion;
  return api.error_new(is_unsupported ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
                       ("modcache: " + status.message()).c_str());
}

Plugin::Plugin(const TritonApi& api, std::unique_ptr<ResponseCache> responses)
    : api_(api), responses_(std::move(responses)) {}

Plugin::~Plugin() {
  responses_.reset();
  set_log_sink({});
}

TritonApi::Error Plugin::lookup(const char* key, TritonApi::Entry* entry,
                                TRITONCACHE_Allocator* allocator) noexcept {
  if (TritonApi::Error error = argument_error(key, entry, allocator)) return error;
  const Status status = without_throwing([&]() -> Status {
    const ResponsePtr response = responses_->lookup(key);
    return response == nullptr ? Status::not_found() : copy_out(api_, *response, entry, allocator);
  });
  if (status.is_ok()) return nullptr;
  if (!status.is_not_found()) report("looking a response up", status);
  return api_.error_new(ErrorCode::kNotFound, "modcache has no response under this key");
}

TritonApi::Error Plugin::insert(const char* key, TritonApi::Entry* entry,
                                TRITONCACHE_Allocator* allocator) noexcept {
  if (TritonApi::Error error = argument_error(key, entry, allocator)) return error;
  // Triton logs each error that it gets here, and a cache that fails would fill the log.
  const Status status = without_throwing([&] { return take_over(key, entry, allocator); });
  if (!status.is_ok()) report("keeping a response", status);
  return nullptr;
}

Status Plugin::take_over(std::string_view key, TritonApi::Entry* entry,
                         TRITONCACHE_Allocator* allocator) {
  MODCACHE_ASSIGN_OR_RETURN(const auto sizes_bytes, sizes_asked_for(api_, entry));
  std::size_t sum = 0;
  for (const std::size_t size_bytes : sizes_bytes) sum += size_bytes;
  const auto wanted = responses_->wanted(key, sum);
  if (!wanted.has_value()) return Status::ok();
  MODCACHE_ASSIGN_OR_RETURN(auto response, Response::allocate(sizes_bytes));
  MODCACHE_RETURN_IF_ERROR(fill(api_, *response, entry, allocator));
  responses_->insert(*wanted, std::move(response));
  return Status::ok();
}

TritonApi::Error Plugin::argument_error(const char* key, const TritonApi::Entry* entry,
                                        const TRITONCACHE_Allocator* allocator) const {
  const char* const missing = key == nullptr || *key == '\0' ? "modcache: there is no key"
                              : entry == nullptr             ? "modcache: there is no entry"
                              : allocator == nullptr         ? "modcache: there is no allocator"
                                                             : nullptr;
  return missing == nullptr ? nullptr : api_.error_new(ErrorCode::kInvalidArgument, missing);
}

void Plugin::report(const char* during, const Status& failure) noexcept {
  responses_->cache().counters().add(ResponseCache::kScope, cache::Counter::kErrors);
  const Status logged = without_throwing([&] {
    log(LogLevel::kWarning, during, std::string("while ") + during + ": " + failure.message());
    return Status::ok();
  });
  (void)logged;  // Where memory is out nobody can be told.
}

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
