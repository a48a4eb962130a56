// SPDX-License-Identifier: Apache-2.0
//
// RemoteServer: what one remote tier has of its server: connections, the queue of writes, the seal
// and the generations, and how entries are called there. Made from the settings; connects to
// nothing until it is asked something. Thread-safe; usable in a forked child.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/hash.h"
#include "base/result.h"
#include "cache/settings.h"
#include "remote/claims.h"
#include "remote/client.h"
#include "remote/generation.h"
#include "remote/seal.h"
#include "remote/write_behind.h"

namespace modcache::cache {

// How a process gets at backends for its settings. Tests have one of their own.
using ConnectRemote = std::function<Result<remote::Client::MakeBackend>(const Settings&)>;
// Goes by way of libmodcache_remote.so.
Result<remote::Client::MakeBackend> connect_by_library(const Settings& settings);

class RemoteServer : public std::enable_shared_from_this<RemoteServer> {
 public:
  // `listener` must outlive it. kInvalidArgument or kIoError says why there is none.
  static Result<std::shared_ptr<RemoteServer>> open(const Settings& settings,
                                                    const ConnectRemote& connect,
                                                    remote::WriteBehind::Listener& listener,
                                                    remote::Client::OnChange on_change);

  std::string entry_name(const Digest128& address) const { return prefix_ + "/e/" + address.hex(); }
  std::string context_name(const Digest128& digest) const { return prefix_ + "/c/" + digest.hex(); }
  std::string entry_prefix() const { return prefix_ + "/e/"; }

  // The longest that a call waits.
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Returns what is in force for a scope; asks the server where that is not known.
  Result<remote::Generations::Current> find_or_make_generation(const std::string& scope);

  const remote::Seal& seal() const { return seal_; }
  remote::Generations& generations() { return generations_; }
  const remote::Claims& claims() const { return claims_; }
  remote::Client& client() { return client_; }
  remote::WriteBehind& writes() { return writes_; }

 private:
  struct Parts {
    std::string prefix;
    std::string secret;
  };
  static Result<Parts> parts_of(const Settings& settings);

  RemoteServer(const Settings& settings, const Parts& parts,
               remote::Client::MakeBackend make_backend, remote::WriteBehind::Listener& listener,
               remote::Client::OnChange on_change);

  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const remote::Seal seal_;
  remote::Generations generations_;
  const remote::Claims claims_;
  remote::Client client_;
  remote::WriteBehind writes_;
};

}  // namespace modcache::cache
