// SPDX-License-Identifier: Apache-2.0
//
// RemoteServer: what one remote tier has of its server: connections, the queue of writes, the names
// and the generations. Made from the settings; connects to nothing until it is asked something.
// Thread-safe; usable in a forked child.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "cache/settings.h"
#include "remote/client.h"
#include "remote/generation.h"
#include "remote/seal.h"
#include "remote/write_behind.h"

namespace modcache::cache {

// RemoteNames: the names of a cache's entries on its server, and the seal that they have there.
// Made from the settings; plain values.
class RemoteNames {
 public:
  // Takes prefix and secret from the address, or else from the environment. kInvalidArgument: one
  // of them is wrong, or a file with the secret cannot be read.
  static Result<RemoteNames> of(const Settings& settings);

  std::string entry_name(const Digest128& address) const { return prefix_ + "/e/" + address.hex(); }
  // All names begin with this and a slash.
  const std::string& prefix() const { return prefix_; }
  const remote::Seal& seal() const { return seal_; }

 private:
  RemoteNames(const std::string& prefix, const std::string& secret);

  std::string prefix_;
  remote::Seal seal_;
};

// How a process gets at backends for its settings. Tests have one of their own.
using ConnectRemote = std::function<Result<remote::Client::MakeBackend>(const Settings&)>;
// Goes by way of libmodcache_remote.so.
Result<remote::Client::MakeBackend> connect_by_library(const Settings& settings);
// Does the same; the library may also lie in one of these folders.
ConnectRemote connect_by_library_in(std::vector<std::string> folders);

class RemoteServer : public std::enable_shared_from_this<RemoteServer> {
 public:
  // `listener` must outlive it. kInvalidArgument or kIoError says why there is none.
  static Result<std::shared_ptr<RemoteServer>> open(const Settings& settings,
                                                    const ConnectRemote& connect,
                                                    remote::WriteBehind::Listener& listener,
                                                    remote::Client::OnChange on_change);

  std::string entry_name(const Digest128& address) const { return names_.entry_name(address); }

  // The longest that a call waits.
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Returns what is in force for a scope; asks the server where that is not known.
  Result<remote::Generations::Current> find_or_make_generation(const std::string& scope);
  // The same for a call, which waits no longer than timeout(). nullopt: the server did not say.
  std::optional<remote::Generations::Current> generation_now(const std::string& scope);

  const remote::Seal& seal() const { return names_.seal(); }
  remote::Generations& generations() { return generations_; }
  remote::Client& client() { return client_; }
  remote::WriteBehind& writes() { return writes_; }

  // Drops the writes that wait, and ends all threads; see WriteBehind::stop() and Client::stop().
  void stop();

 private:
  // Asks the server, and makes what is missing.
  remote::Client::Work finding_generation(
      const std::string& scope, const std::shared_ptr<remote::Generations::Current>& found);

  RemoteServer(const Settings& settings, RemoteNames names,
               remote::Client::MakeBackend make_backend, remote::WriteBehind::Listener& listener,
               remote::Client::OnChange on_change);

  const RemoteNames names_;
  const std::chrono::milliseconds timeout_;
  remote::Generations generations_;
  std::atomic<bool> is_stopping_{false};
  remote::Client client_;
  remote::WriteBehind writes_;
};

}  // namespace modcache::cache
