// SPDX-License-Identifier: Apache-2.0
#include "fs/change_time.h"

#include "base/clock.h"

namespace modcache::fs {
namespace {

constexpr std::int64_t kMillisecondNs = 1'000'000;
// For file systems that keep times in units of one or two seconds.
constexpr std::int64_t kLongTickNs = 3'000 * kMillisecondNs;

}  // namespace

bool has_short_ticks(const FileInfo& info) { return info.changed_ns % kMillisecondNs != 0; }

std::int64_t tick_ns(const FileInfo& info) {
  return has_short_ticks(info) ? kShortTickNs : kLongTickNs;
}

bool is_settled(const FileInfo& info) { return now_ns() - info.changed_ns > tick_ns(info); }

}  // namespace modcache::fs
