// SPDX-License-Identifier: Apache-2.0
//
// How far the time of a file's last change can be trusted. File systems count that time in ticks,
// and two changes within one tick have the same time: whoever looks between them sees no difference
// afterwards.
#pragma once

#include <cstdint>

#include "fs/file_system.h"

namespace modcache::fs {

// An upper bound, several times over, of the tick where file systems count finer than seconds.
constexpr std::int64_t kShortTickNs = 50'000'000;

// Returns whether the file's times are finer than the whole seconds that some file systems keep.
bool has_short_ticks(const FileInfo& info);
// Returns for how long after a change another one may have the same time.
std::int64_t tick_ns(const FileInfo& info);
// Returns whether any change from now on would have another time than the last change before `info`
// was asked for. A time in the future is not settled.
bool is_settled(const FileInfo& info);

}  // namespace modcache::fs
