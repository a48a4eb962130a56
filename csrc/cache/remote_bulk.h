// SPDX-License-Identifier: Apache-2.0
//
// RemoteBulk: the server of a remote tier for programs that move many entries at once, and have the
// time for it: one connection, answers that may take long, and calls that are repeated when a
// server is away for a moment. (Calls of models go by way of RemoteServer.) Used by one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "cache/context.h"
#include "cache/remote_names.h"
#include "cache/remote_server.h"
#include "cache/settings.h"
#include "remote/backend.h"
#include "remote/generation.h"

namespace modcache::cache {

// The entries that are moved: all, or those of one namespace, of one scope, or of both.
struct MoveFilter {
  std::optional<std::string> name_space;
  std::optional<std::string> scope;

  bool covers_everything() const { return !name_space && !scope; }
  bool covers(std::string_view of_name_space, std::string_view of_scope) const {
    return (!name_space || *name_space == of_name_space) && (!scope || *scope == of_scope);
  }
};

class RemoteBulk {
 public:
  // An answer may take so many times as long as a call of a model would wait for it.
  static constexpr int kTimesPatience = 40;
  // How often a call is tried, with this pause before the second time and twice as long each time.
  // After all were in vain, later calls are tried once, until one succeeds.
  static constexpr int kMostTries = 3;
  static constexpr std::chrono::milliseconds kFirstPause{500};

  // Connects. The settings say where to, and how the names there begin. kInvalidArgument, kIoError
  // or kBusy: it cannot be done; the message has the address without its password.
  static Result<std::unique_ptr<RemoteBulk>> connect(Settings settings,
                                                     const ConnectRemote& connect_remote);

  const std::string& shown_address() const { return shown_address_; }
  const RemoteNames& names() const { return names_; }
  std::int64_t ttl_ms() const { return settings_.remote_ttl_s * 1000; }

  // Those of remote::Backend.
  Status get_all(const std::vector<std::string>& names, std::vector<SharedBytes>& values);
  Status get_beginnings(const std::vector<std::string>& names, std::size_t most_bytes,
                        std::vector<SharedBytes>& values);
  // Tries what a part of the server did not take again, too. `are_stored` is right also where the
  // call fails.
  Status put_all(std::vector<remote::NamedValue> values, std::vector<bool>& are_stored);
  // Has a connection of its own, so that `visit` may call the other functions. Is not repeated.
  Status visit_entries(const remote::Backend::Visit& visit);

  // Whose marks count for an entry.
  struct Owner {
    std::string name_space;
    std::string scope;
  };
  using Marks = std::optional<remote::Generations::Current>;  // nothing: the server has none
  // The marks of each, in their order. Those that were not looked at lately are asked for, in one
  // question.
  Status find_marks(const std::vector<Owner>& owners, std::vector<Marks>& marks);
  // The same, and marks that are missing are made.
  Status find_or_make_marks(const std::vector<Owner>& owners, std::vector<Marks>& marks);

 private:
  using Work = std::function<Status(remote::Backend&)>;
  RemoteBulk(Settings settings, RemoteNames names, remote::Client::MakeBackend make_backend,
             std::string shown_address);
  Status run(const Work& work);
  Status run_once(const Work& work);
  // Called after a try. Returns whether there is another one, after the pause before it.
  bool may_try_again(const Status& failure, int tries);
  Status with_address(const Status& failure) const;
  remote::Generations& generations(const std::string& name_space);

  const Settings settings_;
  const RemoteNames names_;
  const remote::Client::MakeBackend make_backend_;
  const std::string shown_address_;
  std::unique_ptr<remote::Backend> backend_;
  int most_tries_ = kMostTries;
  std::map<std::string, std::unique_ptr<remote::Generations>> generations_;  // by namespace
};

}  // namespace modcache::cache
