// SPDX-License-Identifier: Apache-2.0
//
// Faults: which call of a file system or of SQLite's VFS fails, and how. The calls of both are
// counted together, so "fail at call n" reaches every one of them in turn. Thread-safe.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace modcache::testing {

// What a call does to files.
enum class Call : std::uint32_t {
  kOpen = 1U << 0,
  kCreate = 1U << 1,  // an open that may make the file; making a folder
  kInspect = 1U << 2,
  kList = 1U << 3,
  kRename = 1U << 4,
  kRemove = 1U << 5,
  kRead = 1U << 6,
  kWrite = 1U << 7,
  kTruncate = 1U << 8,
  kSync = 1U << 9,
  kMap = 1U << 10,
  kLock = 1U << 11,
  // SQLite's letting go of an exclusive one: it cannot fail, but a process can die before it.
  kUnlock = 1U << 13,
};
using Calls = std::uint32_t;
inline constexpr Calls kOfSqlite = 1U << 12;  // those that SQLite makes as well

constexpr Calls calls(std::initializer_list<Call> list) {
  Calls set = 0;
  for (const Call call : list) set |= static_cast<Calls>(call);
  return set;
}
inline constexpr Calls kEveryCall = (1U << 13) - 1;  // that can fail
// Those that change files or make changes last.
inline constexpr Calls kChangingCalls = calls(
    {Call::kCreate, Call::kRename, Call::kRemove, Call::kWrite, Call::kTruncate, Call::kSync});

enum class Fault {
  kNoSpace,      // ENOSPC or SQLITE_FULL; nothing is done
  kIoError,      // EIO or SQLITE_IOERR_*; nothing is done
  kShortWrite,   // ENOSPC after half of the bytes were written
  kBusy,         // somebody else has the lock
  kCannotOpen,   // EMFILE or SQLITE_CANTOPEN
  kNoMemory,     // SQLITE_NOMEM; a mapping that finds no room
  kKill,         // SIGKILL before the call
  kKillHalfway,  // SIGKILL after half of the bytes were written
};

// The calls at which a fault can happen, SQLite's included.
inline Calls calls_that_can(Fault fault) {
  switch (fault) {
    case Fault::kNoSpace: return kOfSqlite | (kChangingCalls & ~calls({Call::kRemove}));
    case Fault::kShortWrite:
    case Fault::kKillHalfway: return kOfSqlite | calls({Call::kWrite});
    case Fault::kBusy: return kOfSqlite | calls({Call::kLock});
    case Fault::kCannotOpen: return kOfSqlite | calls({Call::kOpen, Call::kCreate});
    case Fault::kNoMemory:
    case Fault::kIoError: return kEveryCall;
    case Fault::kKill: return kEveryCall | calls({Call::kUnlock});
  }
  return kEveryCall;
}

inline const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kNoSpace: return "no_space";
    case Fault::kIoError: return "io_error";
    case Fault::kShortWrite: return "short_write";
    case Fault::kBusy: return "busy";
    case Fault::kCannotOpen: return "cannot_open";
    case Fault::kNoMemory: return "no_memory";
    case Fault::kKill: return "kill";
    case Fault::kKillHalfway: return "kill_halfway";
  }
  return "?";
}

class Faults {
 public:
  // Of the calls in `counted`, the `call`-th from now on (the first is 1) has the fault, and with
  // `forever` all later ones as well. 0: none has, they are only counted.
  void fail_at(std::int64_t call, Fault fault, bool forever, Calls counted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fault_ = fault;
    forever_ = forever;
    counted_ = counted;
    fail_at_ = call;
    calls_ = 0;
    failures_ = 0;
    what_.clear();
  }
  void heal() {
    const std::lock_guard<std::mutex> lock(mutex_);
    fail_at_ = 0;
  }
  // Called with the number of each counted call before it is made; null: nobody is.
  void watch(std::function<void(std::int64_t)> watcher) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watcher_ = std::move(watcher);
  }

  bool is_failing(Fault fault) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return fail_at_ != 0 && fault_ == fault;
  }

  std::int64_t calls() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }
  std::int64_t failures() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failures_;
  }
  // The first call that failed: "write index.sqlite-wal".
  std::string what() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return what_;
  }

  // Asked before each call. Does not return when the fault is to be killed.
  std::optional<Fault> next(Call call, const char* doing, const std::string& path,
                            Calls origin = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_counted =
        (counted_ & static_cast<Calls>(call)) != 0 && (counted_ & origin) == origin;
    if (!is_counted) return std::nullopt;
    ++calls_;
    if (watcher_) watcher_(calls_);
    if (fail_at_ == 0 || calls_ < fail_at_ || (calls_ > fail_at_ && !forever_)) return std::nullopt;
    if (fault_ == Fault::kKill) ::raise(SIGKILL);
    if (failures_++ == 0) what_ = std::string(doing) + ' ' + path.substr(path.rfind('/') + 1);
    return fault_;
  }

 private:
  mutable std::mutex mutex_;
  Fault fault_ = Fault::kIoError;
  bool forever_ = false;
  Calls counted_ = kChangingCalls;
  std::int64_t fail_at_ = 0;
  std::int64_t calls_ = 0;
  std::int64_t failures_ = 0;
  std::string what_;
  std::function<void(std::int64_t)> watcher_;
};

}  // namespace modcache::testing
