// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "cache/remote_server.h"
#include "cache/settings.h"
#include "command_line/diagnosis.h"
#include "command_line/installation.h"

namespace modcache::command_line {
namespace {

// A person waits for the answer.
constexpr std::int64_t kTimeoutMs = 4'000;

Status ping(const cache::Settings& settings) {
  MODCACHE_ASSIGN_OR_RETURN(const auto make_backend,
                            cache::connect_by_library_in(engine_folders())(settings));
  MODCACHE_ASSIGN_OR_RETURN(const auto backend, make_backend());
  return backend->ping();
}

}  // namespace

Finding check_server() {
  std::vector<std::string> warnings;  // check_settings() has them
  cache::Settings settings = cache::settings_from_environment(warnings);
  if (settings.remote.empty()) {
    return {Finding::State::kOk, "server", "none is set (MODCACHE_REMOTE)", ""};
  }
  settings.remote_timeout_ms = kTimeoutMs;
  const std::string shown = "'" + cache::to_options(settings).at("remote") + "'";  // no password
  const Status status = ping(settings);
  if (!status.is_ok()) {
    return {Finding::State::kProblem, "server", "the server " + shown + ": " + status.message(),
            "until then models run without it"};
  }
  return {Finding::State::kOk, "server", shown + " answers", ""};
}

}  // namespace modcache::command_line
