// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "cache/remote_bulk.h"
#include "cache/settings.h"
#include "command_line/diagnosis.h"
#include "command_line/installation.h"

namespace modcache::command_line {
namespace {

// A person waits for the answer.
constexpr std::int64_t kTimeoutMs = 4'000;

}  // namespace

Finding check_server() {
  std::vector<std::string> warnings;  // check_settings() has them
  cache::Settings settings = cache::settings_from_environment(warnings);
  if (settings.remote.empty()) {
    return {Finding::State::kOk, "server", "none is set (MODCACHE_REMOTE)", ""};
  }
  settings.remote_timeout_ms = kTimeoutMs / cache::RemoteBulk::kTimesPatience;
  const auto server =
      cache::RemoteBulk::connect(settings, cache::connect_by_library_in(engine_folders()));
  if (!server.is_ok()) {
    return {Finding::State::kProblem, "server", server.status().message(),
            "until then models run without it"};
  }
  return {Finding::State::kOk, "server", "'" + server.value()->shown_address() + "' answers", ""};
}

}  // namespace modcache::command_line
