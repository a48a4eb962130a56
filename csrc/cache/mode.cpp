// SPDX-License-Identifier: Apache-2.0
#include "cache/mode.h"

#include <array>
#include <string>

namespace modcache::cache {
namespace {

constexpr std::array<Mode, 5> kModes{Mode::kOff, Mode::kRead, Mode::kOn, Mode::kRefresh,
                                     Mode::kVerify};

// In one object, so that asking for both finds the thread's own memory once.
struct ThreadModes {
  Mode of_guards = Mode::kOn;
  Mode of_tasks = Mode::kOn;
};
thread_local ThreadModes modes;

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

Mode thread_mode() {
  const ThreadModes& own = modes;
  return combine(own.of_guards, own.of_tasks);
}

void follow_modes(const std::vector<Mode>& of_tasks) {
  modes.of_tasks = Mode::kOn;
  for (const Mode mode : of_tasks) modes.of_tasks = combine(modes.of_tasks, mode);
}

Mode enter_mode(Mode mode) {
  const Mode previous = modes.of_guards;
  modes.of_guards = combine(previous, mode);
  return previous;
}

void leave_mode(Mode previous) { modes.of_guards = previous; }

}  // namespace modcache::cache
