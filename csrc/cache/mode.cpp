// SPDX-License-Identifier: Apache-2.0
#include "cache/mode.h"

namespace modcache::cache {

Result<Mode> parse_mode(std::string_view text) {
  if (text == "off") return Mode::kOff;
  if (text == "read") return Mode::kRead;
  if (text == "on") return Mode::kOn;
  return Status::invalid_argument("mode is '" + std::string(text) +
                                  "', but must be one of: off, read, on");
}

std::string_view mode_name(Mode mode) {
  switch (mode) {
    case Mode::kOff: return "off";
    case Mode::kRead: return "read";
    case Mode::kOn: return "on";
  }
  return "off";
}

}  // namespace modcache::cache
