// SPDX-License-Identifier: Apache-2.0
#include "cache/mode.h"

#include <array>
#include <string>

namespace modcache::cache {
namespace {

constexpr std::array<Mode, 5> kModes{Mode::kOff, Mode::kRead, Mode::kOn, Mode::kRefresh,
                                     Mode::kVerify};

thread_local Mode mode_of_guards = Mode::kOn;
thread_local Mode mode_of_tasks = Mode::kOn;

}  // namespace

Result<Mode> parse_mode(std::string_view text) {
  std::string valid;
  for (const Mode mode : kModes) {
    if (mode_name(mode) == text) return mode;
    if (!valid.empty()) valid += ", ";
    valid += mode_name(mode);
  }
  return Status::invalid_argument("mode is '" + std::string(text) +
                                  "', but must be one of: " + valid);
}

std::string_view mode_name(Mode mode) {
  switch (mode) {
    case Mode::kOff: return "off";
    case Mode::kRead: return "read";
    case Mode::kOn: return "on";
    case Mode::kRefresh: return "refresh";
    case Mode::kVerify: return "verify";
  }
  return "off";
}

std::optional<Mode> mode_from_number(std::int64_t number) {
  for (const Mode mode : kModes) {
    if (static_cast<std::int64_t>(mode) == number) return mode;
  }
  return std::nullopt;
}

Mode thread_mode() { return combine(mode_of_guards, mode_of_tasks); }

void follow_modes(const std::vector<Mode>& modes) {
  mode_of_tasks = Mode::kOn;
  for (const Mode mode : modes) mode_of_tasks = combine(mode_of_tasks, mode);
}

Mode enter_mode(Mode mode) {
  const Mode previous = mode_of_guards;
  mode_of_guards = combine(previous, mode);
  return previous;
}

void leave_mode(Mode previous) { mode_of_guards = previous; }

}  // namespace modcache::cache
