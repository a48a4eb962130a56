// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/response_cache.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "triton_cache/plugin.h"

namespace modcache::triton_cache {
namespace {

using Clock = std::chrono::steady_clock;

// Entries may outlive the cache that they came from.
struct Formats : ProcessWide<Formats> {
  ResponseFormat of_responses;
};

// Wall clocks are set now and then.
std::int64_t steady_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

using cache::Counter;

Result<std::unique_ptr<ResponseCache>> ResponseCache::create(std::string_view config,
                                                             std::string_view packing) {
  MODCACHE_ASSIGN_OR_RETURN(const auto options, parse_config(config));
  std::unique_ptr<ResponseCache> created(new ResponseCache);
  MODCACHE_RETURN_IF_ERROR(created->cache_.configure(options));
  created->configuration_ = created->cache_.configuration();
  const cache::Settings& settings = created->configuration_->settings;
  cache::ContextParts parts;
  parts.name_space = settings.name_space;
  parts.scope = kScope;
  parts.method = "infer";
  parts.arguments = packing;
  created->context_ = cache::make_context(parts);
  log(LogLevel::kInfo, "triton cache",
      "responses are cached in '" + settings.dir + "', mode " +
          std::string(cache::mode_name(settings.mode)));
  return created;
}

ResponseCache::ResponseCache() : cache_(Formats::instance().of_responses) {}

ResponseCache::~ResponseCache() {
  cache_.flush();
  cache_.close();
}

ResponsePtr ResponseCache::lookup(std::string_view key) {
  const cache::Mode mode = cache_.mode();
  if (mode == cache::Mode::kOff) {
    count(Counter::kBypassedOff);
    return nullptr;
  }
  if (cache::may_read(mode) && !cache::always_runs(mode)) {
    if (ResponsePtr response = find(key, cache::may_write(mode))) return response;
  }
  count(Counter::kMisses);
  miss_times_.note_miss(key, steady_us(), cache_.begin_run(keys(key), cache::may_write(mode)));
  return nullptr;
}

ResponsePtr ResponseCache::find(std::string_view key, bool may_write) {
  const cache::Keys keys = this->keys(key);
  cache::LookupOptions options;
  options.may_write = may_write;
  options.reads_values = true;
  const cache::Found found = cache_.lookup(keys, options);
  if (!found.is_found(0)) return nullptr;
  cache_.count_hits(keys, found, may_write);
  return std::static_pointer_cast<const Response>(found.entry(0)->value);
}

cache::Keys ResponseCache::keys(std::string_view key) const {
  cache::Keys keys(context_, key);
  keys.configuration = configuration_;
  return keys;
}

std::optional<ResponseCache::Wanted> ResponseCache::wanted(std::string_view key,
                                                           std::size_t size_bytes) {
  const cache::Mode mode = cache_.mode();
  const auto missed = miss_times_.take(key, steady_us());
  // The miss was of an earlier request, whose model failed: this one was not looked up.
  if (mode == cache::Mode::kOff) return std::nullopt;
  Wanted wanted{key, mode, std::nullopt, {}};
  if (missed.has_value()) {
    wanted.run_us = missed->run_us;
    wanted.generation = missed->generation;
    count(Counter::kRunUs, missed->run_us);
  } else {
    wanted.generation = cache_.begin_run(keys(key), cache::may_write(mode));
  }
  if (mode == cache::Mode::kVerify) return wanted;
  if (!cache::may_write(mode)) return std::nullopt;
  if (mode != cache::Mode::kRefresh && !cache::Cache::admits(keys(key), 0, {})) return std::nullopt;
  const cache::Settings& settings = configuration_->settings;
  if (size_bytes <= std::max(settings.memory_bytes, settings.disk_bytes)) return wanted;
  count(Counter::kNotKept);
  log_once(LogLevel::kWarning, "triton response too large",
           "a response of " + std::to_string(size_bytes) +
               " bytes is larger than all that the settings 'memory' and 'disk' allow: such "
               "responses are not kept");
  return std::nullopt;
}

void ResponseCache::insert(const Wanted& wanted, ResponsePtr response) {
  if (!response->is_sound()) {
    count(Counter::kBypassedType);
    log_once(LogLevel::kInfo, "triton response unknown",
             "a response without outputs, or packed by Triton in a way that this library does not "
             "know, was not kept");
    return;
  }
  if (wanted.mode == cache::Mode::kVerify) return compare(wanted.key, *response);
  const cache::EntryPtr entry = std::make_shared<const cache::Entry>(
      cache::Entry{std::move(response), /*signature=*/{}, wanted.run_us});
  if (wanted.run_us.has_value()) cache_.note_run(context_->scope, *wanted.run_us);
  cache_.store(keys(wanted.key), std::span<const cache::EntryPtr>(&entry, 1),
               {/*replaces=*/wanted.mode == cache::Mode::kRefresh, &wanted.generation});
}

void ResponseCache::compare(std::string_view key, const Response& fresh) {
  const cache::EntryPtr stored = cache_.find_to_compare(keys(key));
  if (stored == nullptr) return;
  if (static_cast<const Response&>(*stored->value).payload() == fresh.payload()) return;
  count(Counter::kVerifyDifferences);
  log(LogLevel::kWarning, "triton verify",
      "mode verify: the stored response under the key '" + std::string(key) +
          "' is not what the model gave now. Was the model changed under its name and version?");
}

void MissTimes::note_miss(std::string_view key, std::int64_t now_us, cache::Generation generation) {
  const std::uint64_t hash = xxh3_64(key.data(), key.size());
  MutexLock lock(mutex_);
  if (const auto known = by_key_.find(hash); known != by_key_.end()) misses_.erase(known->second);
  by_key_[hash] = misses_.insert(misses_.end(), {hash, now_us, std::move(generation)});
  if (misses_.size() <= kMost) return;
  by_key_.erase(misses_.front().key_hash);
  misses_.pop_front();
}

std::optional<MissTimes::Missed> MissTimes::take(std::string_view key, std::int64_t now_us) {
  const std::uint64_t hash = xxh3_64(key.data(), key.size());
  MutexLock lock(mutex_);
  const auto known = by_key_.find(hash);
  if (known == by_key_.end()) return std::nullopt;
  const auto miss = known->second;
  Missed missed{std::max<std::int64_t>(0, now_us - miss->at_us), std::move(miss->generation)};
  misses_.erase(miss);
  by_key_.erase(known);
  return missed;
}

}  // namespace modcache::triton_cache
