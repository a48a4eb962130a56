// SPDX-License-Identifier: Apache-2.0
//
// Generations: how entries on a server are cleared without being visited. A server has a mark for
// each namespace and each scope: a random number, and the time before which nothing counts. An
// entry says in which generation it was stored, and is found only while the marks say the same. To
// clear a scope is to write a new mark; others see it within kLookAgainAfter.
//
// A mark that is not there (a new server, or one that evicted it) is made by whoever stores first.
// Then nothing that was stored under another one is found again: entries may be lost by that, but
// never come back. Thread-safe; usable in a forked child.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/result.h"
#include "remote/backend.h"
#include "remote/seal.h"

namespace modcache::remote {

struct Generation {
  std::uint64_t of_namespace = 0;
  std::uint64_t of_scope = 0;

  bool operator==(const Generation&) const = default;
};

// The content of a server's mark. `number` is never 0.
struct Mark {
  std::uint64_t number = 0;
  std::int64_t not_before_us = 0;
};
std::string encode_mark(const Mark& mark, const Seal& seal);
std::optional<Mark> decode_mark(std::string_view bytes, const Seal& seal);

class Generations {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLookAgainAfter{1'000};

  // The prefix of names on the server, and the namespace. Both referents must outlive it.
  Generations(const Seal& seal, std::string prefix, std::string_view name_space);
  ~Generations();
  Generations(const Generations&) = delete;
  Generations& operator=(const Generations&) = delete;

  // The marks that an entry of a scope has to have.
  struct Current {
    Generation generation;
    std::int64_t not_before_us = 0;

    bool operator==(const Current&) const = default;
  };
  // Nothing: the marks are not known, or were looked at too long ago. Then their names go with the
  // next question to the server, and note() is told what they say.
  std::optional<Current> current(const std::string& scope);
  // The same, where they were noted with this number: whoever counts in another way what other
  // processes clear does not trust marks that are older than the last of that.
  std::optional<Current> current(const std::string& scope, std::uint64_t as_of);
  // Those of namespace and scope, in this order.
  std::vector<std::string> names(const std::string& scope) const;
  // The two values: what the server has under names(scope). `clears_before`: as clears() was before
  // the server was asked, and so was `as_of` counted. Nothing: a mark is missing.
  std::optional<Current> note(const std::string& scope, const SharedBytes& of_namespace,
                              const SharedBytes& of_scope, std::uint64_t clears_before,
                              std::uint64_t as_of = 0);

  // Grows when a clear of this process begins, and when it ends: what was asked of the server
  // before is not to be kept then.
  std::uint64_t clears() const { return clears_.load(std::memory_order_acquire); }

  // Asks the server, and makes the marks that are missing.
  Result<Current> find_or_make(const std::string& scope, Backend& backend);

  // Nothing of the scope that was stored before `older_than_us` is found any more; 0: nothing at
  // all. An empty scope: of the whole namespace. Where two clear the same thing at the same moment,
  // both count. A failure may have cleared it all the same.
  Status clear(const std::string& scope, std::int64_t older_than_us, Backend& backend);

 private:
  struct Known {
    Current current;
    Clock::time_point seen_at{};
    std::uint64_t as_of = 0;
  };

  std::string name_of(std::string_view kind, std::string_view scope) const;
  Result<Mark> find_or_make_mark(const std::string& name, Backend& backend);
  Current keep(const std::string& scope, const Mark& of_namespace, const Mark& of_scope,
               std::uint64_t clears_before, std::uint64_t as_of = 0);
  std::optional<Known> known(const std::string& scope);
  Status put_mark(const std::string& name, const Mark& mark, Backend& backend);
  Status write_cleared_mark(const std::string& name, std::int64_t older_than_us, Backend& backend);

  const Seal& seal_;
  const std::string prefix_;
  const std::string name_space_;
  std::atomic<std::uint64_t> clears_{0};
  Mutex mutex_;
  std::map<std::string, Known> known_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_registration_;
};

}  // namespace modcache::remote
