// SPDX-License-Identifier: Apache-2.0
//
// The runtime flag: what a call may do with the cache. A mode is a set of permissions, and the
// levels at which one can stand (process, thread, directory) combine: a permission that is missing
// at any level is missing, and always-run at any level wins.
//
//                may read    may write    runs the module
//     off        no          no           always
//     read       yes         no           on a miss
//     on         yes         yes          on a miss
//     refresh    no          yes          always; the result replaces what is stored
//     verify     compares    no           always; the fresh result is returned
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/control/directory_mode.h"

namespace modcache::cache {

// Bits 1: reading, 2: writing, 4: the module runs in any case. These five are all that combine()
// can give, for nothing both reads, writes and always runs.
enum class Mode : std::uint8_t {
  kOff = 0,
  kRead = 1,
  kOn = 1 | 2,
  kVerify = 1 | 4,
  kRefresh = 2 | 4
};

// kInvalidArgument names what was given and what is valid.
Result<Mode> parse_mode(std::string_view text);
std::string_view mode_name(Mode mode);

// Under kVerify what is read is compared and not returned: always_runs() is true then, too.
constexpr bool may_read(Mode mode) { return (static_cast<unsigned>(mode) & 1U) != 0; }
constexpr bool may_write(Mode mode) { return (static_cast<unsigned>(mode) & 2U) != 0; }
// Whatever is stored, the module runs. Of kOff, which always runs it too, this says false: there
// the cache has no part in the call.
constexpr bool always_runs(Mode mode) { return (static_cast<unsigned>(mode) & 4U) != 0; }

// Returns the mode that two levels leave together. kOn changes nothing.
constexpr Mode combine(Mode a, Mode b) {
  const unsigned both = static_cast<unsigned>(a) & static_cast<unsigned>(b) & 3U;
  const unsigned either = (static_cast<unsigned>(a) | static_cast<unsigned>(b)) & 4U;
  return both == 0 ? Mode::kOff : static_cast<Mode>(both | either);
}

// The directory's level.
constexpr Mode mode_of(store::DirectoryMode mode) { return static_cast<Mode>(mode); }
static_assert(mode_of(store::DirectoryMode::kOff) == Mode::kOff &&
              mode_of(store::DirectoryMode::kRead) == Mode::kRead &&
              mode_of(store::DirectoryMode::kOn) == Mode::kOn);

// The calling thread's own level: what its ModeGuards and follow_modes() leave, kOn where there are
// none. Threads do not inherit it; a forked child has that of the thread that forked.
Mode thread_mode();

// Sets the modes of a language's own tasks on the calling thread, which apply beside the thread's
// ModeGuards. Replaces those of the last call. It exists for tasks that take turns on a thread
// (Python's asyncio), whose guards end in any order.
void follow_modes(const std::vector<Mode>& modes);

// The mode whose number is `number`: a mode that went through an int.
std::optional<Mode> mode_from_number(std::int64_t number);

// The two halves of a ModeGuard, for callers that cannot hold one: combines `mode` into the
// thread's level and returns what that was; leave_mode() takes it back, last in, first out.
Mode enter_mode(Mode mode);
void leave_mode(Mode previous);

// While it lives, the calling thread's level is combined with `mode`; guards nest. It is destroyed
// by the thread that made it, in the reverse order, as scopes do.
class [[nodiscard]] ModeGuard {
 public:
  explicit ModeGuard(Mode mode) : previous_(enter_mode(mode)) {}
  ~ModeGuard() { leave_mode(previous_); }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  const Mode previous_;
};

}  // namespace modcache::cache
