// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_bulk.h"

#include <algorithm>
#include <thread>

#include "base/without_throwing.h"
#include "remote/address.h"

namespace modcache::cache {
namespace {

// More namespaces than this are forgotten, and asked for again.
constexpr std::size_t kMostNamespaces = 1000;
constexpr std::int64_t kLongestTimeoutMs = 600'000;

// A server that is full, or that refuses the credentials, does so a second later, too.
bool may_pass(const Status& failure) {
  return failure.code() != StatusCode::kNoSpace && failure.code() != StatusCode::kInvalidArgument;
}

}  // namespace

RemoteBulk::RemoteBulk(Settings settings, RemoteNames names,
                       remote::Client::MakeBackend make_backend, std::string shown_address)
    : settings_(std::move(settings)),
      names_(std::move(names)),
      make_backend_(std::move(make_backend)),
      shown_address_(std::move(shown_address)) {}

Result<std::unique_ptr<RemoteBulk>> RemoteBulk::connect(Settings settings,
                                                        const ConnectRemote& connect_remote) {
  std::string shown = remote::without_password(settings.remote);
  settings.remote_timeout_ms =
      std::min(settings.remote_timeout_ms * kTimesPatience, kLongestTimeoutMs);
  MODCACHE_ASSIGN_OR_RETURN(RemoteNames names, RemoteNames::of(settings));
  MODCACHE_ASSIGN_OR_RETURN(auto make_backend, connect_remote(settings));
  std::unique_ptr<RemoteBulk> bulk(new RemoteBulk(std::move(settings), std::move(names),
                                                  std::move(make_backend), std::move(shown)));
  MODCACHE_RETURN_IF_ERROR(
      bulk->with_address(bulk->run_once([](remote::Backend& backend) { return backend.ping(); })));
  return bulk;
}

Status RemoteBulk::with_address(const Status& failure) const {
  if (failure.is_ok()) return failure;
  return {failure.code(), "the server '" + shown_address_ + "': " + failure.message()};
}

Status RemoteBulk::run_once(const Work& work) {
  return without_throwing([&]() -> Status {
    if (backend_ == nullptr) {
      MODCACHE_ASSIGN_OR_RETURN(backend_, make_backend_());
    }
    return work(*backend_);
  });
}

bool RemoteBulk::may_try_again(const Status& failure, int tries) {
  if (!may_pass(failure)) return false;
  if (tries >= most_tries_) {
    most_tries_ = 1;
    return false;
  }
  std::this_thread::sleep_for(kFirstPause * (1 << (tries - 1)));
  return true;
}

Status RemoteBulk::run(const Work& work) {
  for (int tries = 1;; ++tries) {
    const Status status = run_once(work);
    if (status.is_ok()) {
      most_tries_ = kMostTries;
      return status;
    }
    if (!may_try_again(status, tries)) return with_address(status);
  }
}

Status RemoteBulk::get_all(const std::vector<std::string>& names,
                           std::vector<SharedBytes>& values) {
  values.clear();
  if (names.empty()) return Status::ok();
  return run([&](remote::Backend& backend) { return backend.get_all(names, values); });
}

Status RemoteBulk::get_beginnings(const std::vector<std::string>& names, std::size_t most_bytes,
                                  std::vector<SharedBytes>& values) {
  values.clear();
  if (names.empty()) return Status::ok();
  return run(
      [&](remote::Backend& backend) { return backend.get_beginnings(names, most_bytes, values); });
}

Status RemoteBulk::put_all(std::vector<remote::NamedValue> values, std::vector<bool>& are_stored) {
  are_stored.assign(values.size(), false);
  std::vector<std::size_t> left(values.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (int tries = 1; !left.empty(); ++tries) {
    std::vector<bool> stored_now;
    const Status status = run_once(
        [&](remote::Backend& backend) { return backend.put_all(values, ttl_ms(), stored_now); });
    stored_now.resize(values.size(), false);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (stored_now[i]) {
        are_stored[left[i]] = true;
        continue;
      }
      left[kept] = left[i];
      if (kept != i) values[kept] = std::move(values[i]);
      ++kept;
    }
    left.resize(kept);
    values.resize(kept);
    if (!left.empty() && !may_try_again(status, tries)) return with_address(status);
  }
  most_tries_ = kMostTries;
  return Status::ok();
}

Status RemoteBulk::visit_entries(const remote::Backend::Visit& visit) {
  return with_address(without_throwing([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(const auto backend, make_backend_());
    return backend->visit_all(names_.entry_prefix(), visit);
  }));
}

remote::Generations& RemoteBulk::generations(const std::string& name_space) {
  if (generations_.size() >= kMostNamespaces && generations_.count(name_space) == 0) {
    generations_.clear();
  }
  auto& known = generations_[name_space];
  if (known == nullptr) {
    known = std::make_unique<remote::Generations>(names_.seal(), names_.prefix(), name_space);
  }
  return *known;
}

Status RemoteBulk::find_marks(const std::vector<Owner>& owners, std::vector<Marks>& marks) {
  marks.assign(owners.size(), std::nullopt);
  std::vector<std::size_t> unknown;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    remote::Generations& generations = this->generations(owners[i].name_space);
    marks[i] = generations.current(owners[i].scope);
    if (marks[i].has_value()) continue;
    unknown.push_back(i);
    for (std::string& name : generations.names(owners[i].scope)) names.push_back(std::move(name));
  }
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(get_all(names, values));
  for (std::size_t place = 0; place < unknown.size(); ++place) {
    const Owner& owner = owners[unknown[place]];
    remote::Generations& generations = this->generations(owner.name_space);
    // Nothing is cleared by way of these.
    marks[unknown[place]] = generations.note(owner.scope, values[2 * place], values[2 * place + 1],
                                             generations.clears());
  }
  return Status::ok();
}

Status RemoteBulk::find_or_make_marks(const std::vector<Owner>& owners, std::vector<Marks>& marks) {
  MODCACHE_RETURN_IF_ERROR(find_marks(owners, marks));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (marks[i].has_value()) continue;
    MODCACHE_RETURN_IF_ERROR(run([&](remote::Backend& backend) -> Status {
      MODCACHE_ASSIGN_OR_RETURN(
          marks[i], generations(owners[i].name_space).find_or_make(owners[i].scope, backend));
      return Status::ok();
    }));
  }
  return Status::ok();
}

}  // namespace modcache::cache
