// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_tier.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "cache/read_entries.h"
#include "remote/address.h"

namespace modcache::cache {
namespace {

using Clock = remote::Client::Clock;

}  // namespace

// A question about some of the keys. The marks of the generation go along where they are not known.
struct RemoteTier::Question {
  std::vector<std::size_t> rows;  // of the keys that are asked for
  Changes before;                 // anything was asked
  Clock::time_point deadline{};   // of all that the call asks
  std::optional<remote::Generations::Current> current;
  bool asks_for_marks = false;
  // The work owns it, as it may go on when nobody waits any more.
  struct Answer {
    std::vector<std::string> names;
    std::vector<SharedBytes> values;
  };
  std::shared_ptr<Answer> answer = std::make_shared<Answer>();

  const SharedBytes& value(std::size_t place) const {
    return answer->values[place + (asks_for_marks ? 2 : 0)];
  }
};

RemoteTier::RemoteTier(const Settings& settings, const ValueFormat& format, Stats& stats,
                       ConnectRemote connect)
    : settings_(settings),
      shown_address_(remote::without_password(settings.remote)),
      format_(format),
      stats_(stats),
      connect_(std::move(connect)),
      fork_registration_(hold_across_fork(mutex_)) {}

RemoteTier::~RemoteTier() {
  close();
  stop_holding_across_fork(fork_registration_);
}

void RemoteTier::report(const Status& failure, const char* during) {
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, std::string("remote-") + during + ":" + shown_address_,
      "the remote cache '" + shown_address_ + "', while " + during + ": " + failure.message());
}

void RemoteTier::on_change(const Status& change) {
  if (change.is_ok()) {
    log(LogLevel::kInfo, "remote-again:" + shown_address_,
        "the remote cache '" + shown_address_ + "' answers again");
    return;
  }
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, "remote-down:" + shown_address_,
      "the remote cache '" + shown_address_ + "' cannot be used: " + change.message() +
          "; models run without it until it answers");
}

void RemoteTier::on_written(std::size_t writes) {
  stats_.add(Counter::kRemoteStored, static_cast<std::int64_t>(writes));
}

void RemoteTier::on_dropped(std::size_t writes, const Status& failure) {
  stats_.add(Counter::kRemoteDropped, static_cast<std::int64_t>(writes));
  if (failure.code() == StatusCode::kNoSpace || failure.code() == StatusCode::kForeign) {
    report(failure, "storing");
  }
}

RemoteTier::ServerPtr RemoteTier::open_server() {
  if (Clock::now() < try_again_at_) return nullptr;
  auto opened = RemoteServer::open(settings_, connect_, *this,
                                   [this](const Status& change) { on_change(change); });
  if (opened.is_ok()) return std::move(opened).value();
  try_again_at_ = Clock::now() + kTryAgainAfter;
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, "remote-open:" + shown_address_,
      "the remote cache '" + shown_address_ + "' cannot be used: " + opened.status().message() +
          "; models run without it");
  return nullptr;
}

RemoteTier::ServerPtr RemoteTier::server() {
  MutexLock lock(mutex_);
  if (server_ == nullptr && !is_retired_) server_ = open_server();
  return server_ != nullptr && server_->client().is_available() ? server_ : nullptr;
}

RemoteTier::ServerPtr RemoteTier::server_in_any_state() {
  MutexLock lock(mutex_);
  if (server_ == nullptr && !is_retired_) server_ = open_server();
  return server_;
}

bool RemoteTier::ask(RemoteServer& server, Question& question, std::chrono::milliseconds timeout) {
  const auto work = [answer = question.answer](remote::Backend& backend) {
    return backend.get_all(answer->names, answer->values);
  };
  return server.client().run(work, timeout).is_ok() &&
         question.answer->values.size() == question.answer->names.size();
}

void RemoteTier::find(const Keys& keys, Access access, OnMiss, Found& found) {
  const ServerPtr server = this->server();
  if (server == nullptr) return;
  const std::string& scope = keys.context()->scope;
  Question question;
  // Read before anything else: what is asked from now on may be outdated once they have grown.
  question.before = changes(*server);
  question.deadline = Clock::now() + server->timeout();
  question.current = server->generations().current(scope, question.before.of_directory);
  question.asks_for_marks = !question.current.has_value();
  if (question.asks_for_marks) question.answer->names = server->generations().names(scope);
  const bool has_pending = server->writes().has_pending();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::string name = server->entry_name(keys.addresses[i]);
    // The server's value of this name may be outdated.
    if (has_pending && server->writes().is_pending(name)) continue;
    question.rows.push_back(i);
    question.answer->names.push_back(std::move(name));
  }
  if (question.rows.empty()) return;
  if (!ask(*server, question, server->timeout())) return;
  std::optional<remote::Generations::Current> current;
  auto rows = rows_of(*server, keys, question, access, current);
  // A value that proved wrong meanwhile must not come back into nearer tiers.
  const Changes now = changes(*server);
  if (!rows.has_value() || now.clears != question.before.clears) return;
  if (now.replacements != question.before.replacements) return;
  found.add_rows(*std::move(rows), [this, scope, marks = *current, deadline = question.deadline,
                                    before = question.before]() mutable {
    return still_holds(scope, marks, deadline, before);
  });
}

void RemoteTier::comes_after(const std::shared_ptr<DiskTier>& directory) {
  MutexLock lock(mutex_);
  directory_ = directory;
}

std::uint64_t RemoteTier::removals_of_directory() {
  std::shared_ptr<DiskTier> directory;
  {
    MutexLock lock(mutex_);
    directory = directory_.lock();
  }
  return directory != nullptr ? directory->removals() : 0;
}

RemoteTier::Changes RemoteTier::changes(RemoteServer& server) {
  return {server.generations().clears(), replacements_.load(std::memory_order_acquire),
          removals_of_directory()};
}

bool RemoteTier::still_holds(const std::string& scope, const remote::Generations::Current& marks,
                             Clock::time_point deadline, Changes& before) {
  const ServerPtr server = this->server();
  if (server == nullptr) return false;
  const Changes now = changes(*server);
  if (now.clears != before.clears || now.replacements != before.replacements) return false;
  if (now.of_directory == before.of_directory) return true;
  // The whole call waits for the server no longer than one question may take. A healthy server is
  // not taken for one that fails because little of that is left.
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  Question question;
  question.answer->names = server->generations().names(scope);
  if (left < server->timeout() / 4 || !ask(*server, question, left)) return false;
  const auto& values = question.answer->values;
  const auto current =
      server->generations().note(scope, values[0], values[1], now.clears, now.of_directory);
  if (!current.has_value() || !(*current == marks)) return false;
  before = now;
  return true;
}

bool RemoteTier::is_of(const remote::Record& record, const store::EntryId& id,
                       const remote::Generations::Current& current) const {
  if (record.context != id.context.digest || record.key != id.key) return false;
  if (!(record.generation == current.generation)) return false;
  if (record.stored_at_us < current.not_before_us) return false;
  return settings_.max_age_s == 0 ||
         (now_us() - record.stored_at_us) / 1'000'000 < settings_.max_age_s;
}

// Nothing: the server has none of the keys. `current`: the marks that the rows have.
std::optional<FoundRows> RemoteTier::rows_of(RemoteServer& server, const Keys& keys,
                                             const Question& question, Access access,
                                             std::optional<remote::Generations::Current>& current) {
  current = question.current;
  if (question.asks_for_marks) {
    current = server.generations().note(keys.context()->scope, question.answer->values[0],
                                        question.answer->values[1], question.before.clears,
                                        question.before.of_directory);
  }
  if (!current.has_value()) return std::nullopt;
  store::ReceivedRows rows(keys.addresses);
  bool has_found = false;
  for (std::size_t place = 0; place < question.rows.size(); ++place) {
    const SharedBytes& bytes = question.value(place);
    if (bytes.owner == nullptr) continue;
    const std::size_t i = question.rows[place];
    const auto record = remote::decode_record(bytes.view(), server.seal());
    if (!record.is_ok()) {
      if (record.status().code() == StatusCode::kCorruption) {
        // These bytes are given to nobody, so no answer is outdated by that.
        count_broken(record.status());
        if (access == Access::kWrite) remove(server, keys.addresses[i]);
      }
      continue;
    }
    const remote::Record& entry = record.value();
    if (!is_of(entry, keys.id(i), *current)) continue;
    const auto* const payload = reinterpret_cast<const std::byte*>(entry.payload.data());
    rows.add(i, {entry.header,
                 {bytes.owner, payload, entry.payload.size()},
                 entry.run_us,
                 entry.stored_at_us});
    has_found = true;
  }
  if (!has_found) return std::nullopt;
  return FoundRows(std::move(rows).finish(), question.before.of_directory);
}

HeldEntry RemoteTier::read(const store::EntryId& id, FoundRows& rows, std::size_t row,
                           Access access, Reading reading) {
  auto entry = reading == Reading::kOnce
                   ? read_entry_once(format_, rows, row)
                   : std::move(read_entries(format_, Form::kWhole, rows, {row}).front());
  if (entry.is_ok()) return {std::move(entry).value(), 0, rows.removals()};
  refuse(id, rows.sequence(row), entry.status(), access);
  return {};
}

void RemoteTier::count_broken(const Status& broken) {
  stats_.add(Counter::kCorrupt);
  log(LogLevel::kWarning, "remote-corrupt:" + shown_address_,
      "an entry of the remote cache '" + shown_address_ +
          "' was refused and is computed anew: " + broken.message());
}

void RemoteTier::refuse(const store::EntryId& id, store::Sequence, const Status& broken,
                        Access access) {
  count_broken(broken);
  drop(id, access);
}

void RemoteTier::flush() {
  ServerPtr server;
  {
    MutexLock lock(mutex_);
    server = server_;
  }
  if (server == nullptr) return;
  const Status status = server->writes().flush(Clock::now() + kLongestFlush);
  if (!status.is_ok()) report(status, "flushing");
}

void RemoteTier::retire() {
  {
    MutexLock lock(mutex_);
    is_retired_ = true;
  }
  close();
}

void RemoteTier::close() {
  ServerPtr closing;
  {
    MutexLock lock(mutex_);
    closing = std::move(server_);
    server_ = nullptr;
  }
  if (closing == nullptr) return;
  (void)closing->writes().flush(Clock::now() + kLongestGoodbye);
  // Both tell this object of what they do, and may outlive it: work that hangs owns the server.
  closing->stop();
}

}  // namespace modcache::cache
