// SPDX-License-Identifier: Apache-2.0
//
// What an entry needs that is written to the server later: its place, and the mark of its scope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/result.h"
#include "cache/context.h"
#include "cache/remote_server.h"
#include "cache/tier.h"
#include "remote/generation.h"
#include "remote/write_behind.h"

namespace modcache::cache {

// The mark with which something is written that waits meanwhile: the one that was in force when it
// was handed over, so that a clear that came between takes it along. The entries of one push share
// one. Immutable.
class MarkOfWrite {
 public:
  // nullopt: the server did not say what is in force, and is asked again for the write.
  MarkOfWrite(std::uint64_t clears, std::optional<remote::Generations::Current> known)
      : clears_(clears), known_(known) {}

  // kBusy would have it wait; kIoError: the scope was cleared, so it must not be written.
  Result<remote::Generations::Current> find(RemoteServer& server, const std::string& scope) const;

 private:
  std::uint64_t clears_;
  std::optional<remote::Generations::Current> known_;
};

// One entry of a push. Copyable; the server must outlive it, as it does where its own queue of
// writes holds it.
class EntryToWrite {
 public:
  EntryToWrite(RemoteServer& server, std::shared_ptr<const MarkOfWrite> mark, const Keys& keys,
               std::size_t i);

  // A write of it without its encoder, which shall call encode().
  remote::WriteBehind::Write write(std::size_t payload_size_bytes, bool replaces) const;
  // The record. Fails as MarkOfWrite::find() does.
  Result<std::string> encode(std::string_view header, std::string_view payload, std::int64_t run_us,
                             std::int64_t stored_at_us) const;

 private:
  RemoteServer* server_;
  std::shared_ptr<const MarkOfWrite> mark_;
  ContextPtr context_;
  std::string key_;
  Digest128 address_;
};

}  // namespace modcache::cache
