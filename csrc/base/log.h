// SPDX-License-Identifier: Apache-2.0
//
// Messages for the person who runs the process, on standard error:
//     modcache: warning: <message>
// Rate-limited: one message per `cause` every 30 s (`once` causes: one per process), so that a
// full disk costs one line and not one per call. May be called from any thread; never throws.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace modcache {

enum class LogLevel { kOff = 0, kError = 1, kWarning = 2, kInfo = 3 };

void set_log_level(LogLevel level);

// `cause` is the unit that is rate-limited, for instance "disk-full:/data/cache".
void log(LogLevel level, std::string_view cause, const std::string& message);
void log_once(LogLevel level, std::string_view cause, const std::string& message);

// Replaces standard error as the destination of messages; an empty sink restores it.
using LogSink = std::function<void(LogLevel, const std::string&)>;
void set_log_sink(LogSink sink);
// Every cause is told of again. For tests, many of which run in one process.
void forget_logged_causes();

}  // namespace modcache
