// SPDX-License-Identifier: Apache-2.0
//
// A server of named values in memory, and backends that are connected to it. The server does what a
// test asks of it: it fails, is slow, hangs, is full, refuses writers, or damages what it keeps.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "remote/backend.h"
#include "remote/client.h"

namespace modcache::testing {

enum class ServerCall { kGet, kPut, kRemove, kPutIfAbsent, kRemoveIf, kPing };

// Thread-safe. Its backends own a share of it, so it lives in a shared_ptr.
class ValueServer {
 public:
  static std::shared_ptr<ValueServer> make() { return std::make_shared<ValueServer>(); }

  // Switches. Each call fails with this status; ok: none does.
  void fail(Status failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = std::move(failure);
  }
  // Each call that writes a value fails with this status: kNoSpace, kForeign.
  void refuse_writes(Status refusal) {
    const std::lock_guard<std::mutex> lock(mutex_);
    refusal_ = std::move(refusal);
  }
  // Values of these names are not stored, which the server says without a failure: their part of it
  // cannot be asked.
  void leave_out(std::vector<std::string> names) {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_out_ = std::move(names);
  }
  void delay(std::chrono::milliseconds delay) {
    const std::lock_guard<std::mutex> lock(mutex_);
    delay_ = delay;
  }
  // Calls wait until release(), and are served then.
  void hang() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_hanging_ = true;
  }
  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_hanging_ = false;
    changed_.notify_all();
  }
  // Called before a call is served, without a lock: a test acts there as a machine that comes
  // first.
  void before_each(std::function<void(ServerCall)> hook) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hook_ = std::move(hook);
  }
  // Makes connections fail.
  void refuse_connections(Status failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    connect_failure_ = std::move(failure);
  }

  // Nothing: there is no such value.
  std::optional<std::string> value(const std::string& name) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = values_.find(name);
    if (found == values_.end()) return std::nullopt;
    return found->second.bytes;
  }
  bool has(const std::string& name) const { return value(name).has_value(); }
  std::vector<std::string> names() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, stored] : values_) names.push_back(name);
    return names;
  }
  std::int64_t ttl_ms(const std::string& name) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.at(name).ttl_ms;
  }
  void set(const std::string& name, std::string bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[name] = {std::move(bytes), 0};
  }
  void forget(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.erase(name);
  }
  void flip_byte(const std::string& name, std::size_t i) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string& bytes = values_.at(name).bytes;
    bytes.at(i) = static_cast<char>(bytes[i] ^ 0xff);
  }
  void truncate(const std::string& name, std::size_t size_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.at(name).bytes.resize(size_bytes);
  }

  int calls(ServerCall kind) const { return calls_[static_cast<std::size_t>(kind)]; }
  int connections() const { return connections_; }
  int most_at_once() const { return most_at_once_; }

  // For Client. The server has to be in a shared_ptr.
  static remote::Client::MakeBackend connect_to(std::shared_ptr<ValueServer> server);

 private:
  friend class FakeBackend;
  struct Stored {
    std::string bytes;
    std::int64_t ttl_ms = 0;
  };

  // Waits as the switches say, and then serves the call with the server's lock held.
  template <typename Serve>
  auto call(ServerCall kind, const Serve& serve) -> decltype(serve()) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++calls_[static_cast<std::size_t>(kind)];
    most_at_once_ = std::max(most_at_once_.load(), ++now_);
    if (const auto hook = hook_) {
      lock.unlock();
      hook(kind);
      lock.lock();
    }
    if (const auto delay = delay_; delay.count() > 0) {
      lock.unlock();
      std::this_thread::sleep_for(delay);
      lock.lock();
    }
    changed_.wait(lock, [this] { return !is_hanging_; });
    --now_;
    if (!failure_.is_ok()) return failure_;
    return serve();
  }
  bool is_left_out(const std::string& name) const {
    return std::find(left_out_.begin(), left_out_.end(), name) != left_out_.end();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Stored> values_;
  std::array<std::atomic<int>, 6> calls_{};
  Status failure_;
  Status refusal_;
  Status connect_failure_;
  std::vector<std::string> left_out_;
  std::chrono::milliseconds delay_{0};
  std::function<void(ServerCall)> hook_;
  bool is_hanging_ = false;
  std::atomic<int> connections_{0};
  std::atomic<int> most_at_once_{0};
  int now_ = 0;
};

class FakeBackend final : public remote::Backend {
 public:
  explicit FakeBackend(std::shared_ptr<ValueServer> server) : server_(std::move(server)) {}

  Status get_all(const std::vector<std::string>& names, std::vector<SharedBytes>& values) override {
    return server_->call(ServerCall::kGet, [&] {
      values.assign(names.size(), {});
      for (std::size_t i = 0; i < names.size(); ++i) {
        const auto found = server_->values_.find(names[i]);
        if (found != server_->values_.end()) values[i] = share_bytes(found->second.bytes);
      }
      return Status::ok();
    });
  }
  Status put_all(const std::vector<remote::NamedValue>& values, std::int64_t ttl_ms,
                 std::vector<bool>& are_stored) override {
    return server_->call(ServerCall::kPut, [&]() -> Status {
      are_stored.assign(values.size(), false);
      if (!server_->refusal_.is_ok()) return server_->refusal_;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (server_->is_left_out(values[i].name)) continue;
        server_->values_[values[i].name] = {values[i].value, ttl_ms};
        are_stored[i] = true;
      }
      return Status::ok();
    });
  }
  Status remove_all(const std::vector<std::string>& names) override {
    return server_->call(ServerCall::kRemove, [&] {
      for (const std::string& name : names) server_->values_.erase(name);
      return Status::ok();
    });
  }
  Result<bool> put_if_absent(const remote::NamedValue& value) override {
    return server_->call(ServerCall::kPutIfAbsent, [&]() -> Result<bool> {
      if (!server_->refusal_.is_ok()) return server_->refusal_;
      return server_->values_.insert({value.name, {value.value, 0}}).second;
    });
  }
  Result<bool> remove_if(std::string_view name, std::string_view expected) override {
    return server_->call(ServerCall::kRemoveIf, [&]() -> Result<bool> {
      if (!server_->refusal_.is_ok()) return server_->refusal_;
      if (server_->is_left_out(std::string(name))) return Status::io_error("that part is down");
      const auto found = server_->values_.find(std::string(name));
      if (found == server_->values_.end() || found->second.bytes != expected) return false;
      server_->values_.erase(found);
      return true;
    });
  }
  Status ping() override {
    return server_->call(ServerCall::kPing, [] { return Status::ok(); });
  }

 private:
  const std::shared_ptr<ValueServer> server_;
};

inline remote::Client::MakeBackend ValueServer::connect_to(std::shared_ptr<ValueServer> server) {
  return [server = std::move(server)]() -> Result<std::unique_ptr<remote::Backend>> {
    const std::lock_guard<std::mutex> lock(server->mutex_);
    if (!server->connect_failure_.is_ok()) return server->connect_failure_;
    ++server->connections_;
    return std::unique_ptr<remote::Backend>(std::make_unique<FakeBackend>(server));
  };
}

}  // namespace modcache::testing
