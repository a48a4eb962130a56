// SPDX-License-Identifier: Apache-2.0
//
// What the time of a file's last change can tell. File systems count it in ticks, so two changes
// within one have the same time: who looks between them sees no difference afterwards.
#pragma once

#include <cstdint>

#include "fs/file_system.h"

namespace modcache::fs {

// The shortest time that is a tick of clocks for files, several times over.
constexpr std::int64_t kShortTickNs = 50'000'000;

// Whether the file's times have more digits than those of file systems that keep whole seconds.
bool has_short_ticks(const FileInfo& info);
// How long a later change may have the same time.
std::int64_t tick_ns(const FileInfo& info);
// Whether a change from now on has another time than the last one before `info` was asked for. A
// time that is yet to come is not settled.
bool is_settled(const FileInfo& info);

}  // namespace modcache::fs
