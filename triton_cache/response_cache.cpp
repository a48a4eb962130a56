// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/response_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "triton_cache/config.h"

namespace modcache::triton_cache {

using cache::Counter;

Result<std::unique_ptr<ResponseCache>> ResponseCache::create(std::string_view config,
                                                             std::string_view packing) {
  MODCACHE_ASSIGN_OR_RETURN(const auto options, parse_config(config));
  std::unique_ptr<ResponseCache> created(new ResponseCache);
  MODCACHE_RETURN_IF_ERROR(created->cache_.configure(options));
  created->session_ = created->cache_.session();
  const cache::Settings& settings = created->session_->settings();
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
  cache::EntryPtr entry;
  if (cache::may_read(mode) && !cache::always_runs(mode)) {
    entry = session_->lookup_at_once(request(key), cache::may_write(mode));
  }
  if (entry != nullptr) return std::static_pointer_cast<const Response>(entry->value);
  count(Counter::kMisses);
  miss_times_.note_miss(key, now_us());
  return nullptr;
}

bool ResponseCache::wants(std::size_t size_bytes) {
  const cache::Mode mode = cache_.mode();
  if (mode == cache::Mode::kVerify) return true;
  if (!cache::may_write(mode)) return false;
  const cache::Settings& settings = session_->settings();
  if (size_bytes <= std::max(settings.memory_bytes, settings.disk_bytes)) return true;
  count(Counter::kNotKept);
  log_once(LogLevel::kWarning, "triton response too large",
           "a response of " + std::to_string(size_bytes) +
               " bytes is larger than all that the settings 'memory' and 'disk' allow: such "
               "responses are not kept");
  return false;
}

void ResponseCache::insert(std::string_view key, ResponsePtr response) {
  const cache::Mode mode = cache_.mode();
  const auto run_us = miss_times_.take_us(key, now_us());
  if (run_us.has_value()) count(Counter::kRunUs, *run_us);
  if (!response->is_sound()) {
    count(Counter::kBypassedType);
    log_once(LogLevel::kInfo, "triton response unknown",
             "a response without outputs, or packed by Triton in a way that this library does not "
             "know, was not kept");
    return;
  }
  if (mode == cache::Mode::kVerify) compare(key, *response);
  if (!cache::may_write(mode)) return;
  auto entry = std::make_shared<const cache::Entry>(
      cache::Entry{std::move(response), /*signature=*/{}, run_us});
  session_->store(request(key), entry, /*replaces=*/mode == cache::Mode::kRefresh);
}

void ResponseCache::compare(std::string_view key, const Response& fresh) {
  const cache::EntryPtr stored = session_->peek(request(key));
  if (stored == nullptr) return;
  if (static_cast<const Response&>(*stored->value).payload() == fresh.payload()) return;
  count(Counter::kVerifyDifferences);
  log(LogLevel::kWarning, "triton verify",
      "mode verify: the stored response under the key '" + std::string(key) +
          "' is not what the model gave now. Was the model changed under its name and version?");
}

}  // namespace modcache::triton_cache
