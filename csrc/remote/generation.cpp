// SPDX-License-Identifier: Apache-2.0
#include "remote/generation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/random.h"

namespace modcache::remote {
namespace {

constexpr std::size_t kMarkBytes = 16;
// More scopes than this in one process: what is known of them is asked for again.
constexpr std::size_t kMostScopes = 4096;
constexpr std::int64_t kNoExpiry = 0;
constexpr int kTriesToClear = 5;

Mark new_mark() {
  Mark mark;
  while (mark.number == 0) mark.number = random_number();
  return mark;
}

}  // namespace

std::string encode_mark(const Mark& mark, const Seal& seal) {
  std::string bytes(kMarkBytes, '\0');
  write_number(mark.number, bytes.data());
  write_number(mark.not_before_us, bytes.data() + 8);
  seal.put_on(bytes);
  return bytes;
}

std::optional<Mark> decode_mark(std::string_view bytes, const Seal& seal) {
  if (!seal.take_off(bytes) || bytes.size() != kMarkBytes) return std::nullopt;
  const Mark mark{read_number<std::uint64_t>(bytes.data()),
                  read_number<std::int64_t>(bytes.data() + 8)};
  if (mark.number == 0) return std::nullopt;
  return mark;
}

Generations::Generations(const Seal& seal, std::string prefix, std::string_view name_space)
    : seal_(seal),
      prefix_(std::move(prefix)),
      name_space_(name_space),
      fork_registration_(hold_across_fork(mutex_)) {}

Generations::~Generations() { stop_holding_across_fork(fork_registration_); }

std::string Generations::name_of(std::string_view kind, std::string_view scope) const {
  std::string text = name_space_;
  text.push_back('\0');
  text.append(scope);
  return prefix_ + "/ctl/" + std::string(kind) + "-" + blake2b_128(text).hex();
}

std::vector<std::string> Generations::names(const std::string& scope) const {
  return {name_of("namespace", ""), name_of("scope", scope)};
}

std::optional<Generations::Known> Generations::known(const std::string& scope) {
  MutexLock lock(mutex_);
  const auto found = known_.find(scope);
  if (found == known_.end()) return std::nullopt;
  if (Clock::now() - found->second.seen_at > kLookAgainAfter) return std::nullopt;
  return found->second;
}

std::optional<Generations::Current> Generations::current(const std::string& scope) {
  const auto known = this->known(scope);
  if (!known.has_value()) return std::nullopt;
  return known->current;
}

std::optional<Generations::Current> Generations::current(const std::string& scope,
                                                         std::uint64_t as_of) {
  const auto known = this->known(scope);
  if (!known.has_value() || known->as_of != as_of) return std::nullopt;
  return known->current;
}

// A mark that was asked for before a clear of this process ended may be the replaced one, by which
// cleared entries would be found.
Generations::Current Generations::keep(const std::string& scope, const Mark& of_namespace,
                                       const Mark& of_scope, std::uint64_t clears_before,
                                       std::uint64_t as_of) {
  const Current current{{of_namespace.number, of_scope.number},
                        std::max(of_namespace.not_before_us, of_scope.not_before_us)};
  MutexLock lock(mutex_);
  if (clears_before != clears()) return current;
  if (known_.size() >= kMostScopes && known_.count(scope) == 0) known_.clear();
  known_[scope] = {current, Clock::now(), as_of};
  return current;
}

std::optional<Generations::Current> Generations::note(const std::string& scope,
                                                      const SharedBytes& of_namespace,
                                                      const SharedBytes& of_scope,
                                                      std::uint64_t clears_before,
                                                      std::uint64_t as_of) {
  if (of_namespace.owner == nullptr || of_scope.owner == nullptr) return std::nullopt;
  const auto first = decode_mark(of_namespace.view(), seal_);
  const auto second = decode_mark(of_scope.view(), seal_);
  if (!first.has_value() || !second.has_value()) return std::nullopt;
  return keep(scope, *first, *second, clears_before, as_of);
}

Result<Mark> Generations::find_or_make_mark(const std::string& name, Backend& backend) {
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(backend.get_all({name}, values));
  const bool is_there = values.front().owner != nullptr;
  if (is_there) {
    if (const auto mark = decode_mark(values.front().view(), seal_)) return *mark;
  }
  const NamedValue mine{name, encode_mark(new_mark(), seal_)};
  if (is_there) {  // damaged
    std::vector<bool> are_stored;
    MODCACHE_RETURN_IF_ERROR(backend.put_all({mine}, kNoExpiry, are_stored));
  } else {
    MODCACHE_RETURN_IF_ERROR(backend.put_if_absent(mine).status());
  }
  // Another process may have made it at the same time, so the server's word is asked for.
  MODCACHE_RETURN_IF_ERROR(backend.get_all({name}, values));
  const auto mark =
      values.front().owner == nullptr ? std::nullopt : decode_mark(values.front().view(), seal_);
  if (!mark.has_value()) return Status::io_error("it does not keep what is written to it");
  return *mark;
}

Result<Generations::Current> Generations::find_or_make(const std::string& scope, Backend& backend) {
  const std::uint64_t clears_before = clears();
  const std::vector<std::string> both = names(scope);
  MODCACHE_ASSIGN_OR_RETURN(const Mark of_namespace, find_or_make_mark(both[0], backend));
  MODCACHE_ASSIGN_OR_RETURN(const Mark of_scope, find_or_make_mark(both[1], backend));
  return keep(scope, of_namespace, of_scope, clears_before);
}

Status Generations::clear(const std::string& scope, std::int64_t older_than_us, Backend& backend) {
  clears_.fetch_add(1, std::memory_order_acq_rel);
  const std::string name = scope.empty() ? names(scope)[0] : names(scope)[1];
  const Status written = write_cleared_mark(name, older_than_us, backend);
  // One that failed may have reached the server all the same.
  MutexLock lock(mutex_);
  known_.clear();
  clears_.fetch_add(1, std::memory_order_acq_rel);
  return written;
}

Status Generations::write_cleared_mark(const std::string& name, std::int64_t older_than_us,
                                       Backend& backend) {
  if (older_than_us == 0) return put_mark(name, new_mark(), backend);
  for (int i = 0; i < kTriesToClear; ++i) {
    MODCACHE_ASSIGN_OR_RETURN(Mark mark, find_or_make_mark(name, backend));
    const std::string before = encode_mark(mark, seal_);
    mark.not_before_us = std::max(mark.not_before_us, older_than_us);
    // Another machine may clear everything at this moment, which the old number must not undo.
    // While there is no mark, nothing is found.
    const auto is_removed = backend.remove_if(name, before);
    // The server forbids scripts, or all writes, and put_mark() then fails.
    if (is_removed.status().code() == StatusCode::kForeign) return put_mark(name, mark, backend);
    MODCACHE_RETURN_IF_ERROR(is_removed.status());
    if (!is_removed.value()) continue;
    MODCACHE_ASSIGN_OR_RETURN(const bool is_put,
                              backend.put_if_absent({name, encode_mark(mark, seal_)}));
    if (is_put) return Status::ok();
  }
  return Status::busy("others clear it all the time");
}

Status Generations::put_mark(const std::string& name, const Mark& mark, Backend& backend) {
  std::vector<bool> are_stored;
  MODCACHE_RETURN_IF_ERROR(
      backend.put_all({{name, encode_mark(mark, seal_)}}, kNoExpiry, are_stored));
  const bool is_stored = !are_stored.empty() && are_stored.front();
  return is_stored ? Status::ok()
                   : Status::not_found("the part of it that knows what counts is down");
}

}  // namespace modcache::remote
