// SPDX-License-Identifier: Apache-2.0
#include "cache/cache.h"

#include <cassert>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "cache/context.h"
#include "cache/metrics.h"
#include "store/entry/scope_filter.h"
#include "store/listing/listing.h"

namespace modcache::cache {
namespace {

const ValueFormat* process_format = nullptr;

const ValueFormat& format_of_process() {
  assert(process_format != nullptr);
  return *process_format;
}

// Entries that are still queued are committed by close(), which runs at exit.
struct CacheOfProcess : ProcessWide<CacheOfProcess> {
  CacheOfProcess() {
    std::atexit([] { Cache::instance().close(); });
  }

  Cache cache{format_of_process()};
};

}  // namespace

void Cache::set_value_format(const ValueFormat& format) { process_format = &format; }

Cache& Cache::instance() { return CacheOfProcess::instance().cache; }

Cache::Cache(const ValueFormat& format, fs::FileSystem& file_system, ConnectRemote connect_remote)
    : format_(format),
      file_system_(file_system),
      connect_remote_(std::move(connect_remote)),
      read_ahead_(format, places_,
                  [this] { return may_read(combine(process_mode(), directory_mode())); }),
      fork_registration_(hold_across_fork(mutex_)) {}

Cache::~Cache() {
  read_ahead_.stop();
  stop_holding_across_fork(fork_registration_);
}

SessionPtr Cache::session() {
  MutexLock lock(mutex_);
  return session_locked();
}

SessionPtr Cache::session_locked() {
  if (session_ != nullptr) return session_;
  std::vector<std::string> warnings;
  Settings settings = settings_from_environment(warnings);
  set_log_level(settings.log);
  for (const auto& warning : warnings) log_once(LogLevel::kWarning, warning, warning);
  int unknown = kModeUnknown;
  mode_.compare_exchange_strong(unknown, static_cast<int>(settings.mode));
  use_directory(settings);
  forget_seen(settings.admission);
  Tiers tiers = make_tiers(settings, tier_parts(settings));
  session_ = std::make_shared<Session>(std::move(settings), std::move(tiers), shared());
  return session_;
}

void Cache::forget_seen(Admission admission) {
  seen_ = admission == Admission::kAll ? nullptr : std::make_shared<policy::SeenFilter>();
}

Status Cache::configure(const Options& options) {
  SessionPtr replaced;
  {
    MutexLock lock(mutex_);
    MODCACHE_RETURN_IF_ERROR(apply_locked(options, replaced));
    for (const auto& [name, value] : options) given_.insert(name);
  }
  retire_remote_of(*replaced);
  return Status::ok();
}

Status Cache::configure_unset(const Options& options) {
  SessionPtr replaced;
  {
    MutexLock lock(mutex_);
    Options unset;
    for (const auto& [name, value] : options) {
      if (!is_given_locked(name)) unset.emplace(name, value);
    }
    MODCACHE_RETURN_IF_ERROR(apply_locked(unset, replaced));
  }
  retire_remote_of(*replaced);
  return Status::ok();
}

// Whoever changes the settings waits for the end of a server's connections. Else the last call that
// still uses them would.
void Cache::retire_remote_of(Session& replaced) {
  const auto& remote = replaced.tiers_.remote;
  if (remote != nullptr && remote != session()->tiers_.remote) remote->retire();
}

bool Cache::is_given(const std::string& option) {
  MutexLock lock(mutex_);
  return is_given_locked(option);
}

bool Cache::is_given_locked(const std::string& option) {
  return given_.count(option) != 0 || is_in_environment(option);
}

Status Cache::apply_locked(const Options& options, SessionPtr& replaced) {
  const SessionPtr current = session_locked();
  Settings settings = current->settings_;
  MODCACHE_RETURN_IF_ERROR(apply_options(options, settings));
  Tiers tiers = make_tiers(settings, tier_parts(settings), current->settings_, current->tiers_);
  set_log_level(settings.log);
  if (options.count("match") != 0) conflicts_.forget();
  if (options.count("verify_share") != 0) verified_.forget("");
  if (options.count("admission") != 0) forget_seen(settings.admission);
  if (options.count("mode") != 0) mode_.store(static_cast<int>(settings.mode));
  use_directory(settings);
  replaced = current;
  session_ = std::make_shared<Session>(std::move(settings), std::move(tiers), shared());
  return Status::ok();
}

Options Cache::settings() {
  Settings settings = session()->settings_;
  settings.mode = process_mode();
  return to_options(settings);
}

Mode Cache::mode_from_settings() {
  session();
  return static_cast<Mode>(mode_.load(std::memory_order_relaxed));
}

store::ModePage& Cache::mode_page_of_settings() {
  session();
  return *mode_page_.load(std::memory_order_acquire);
}

void Cache::use_directory(const Settings& settings) {
  // A directory that this process does not use has no say in it.
  const std::string dir = settings.disk_bytes == 0 ? "" : settings.dir;
  auto& page = mode_pages_[{dir, settings.io}];
  if (page == nullptr) {
    page = std::make_unique<store::ModePage>(file_system_, dir, settings.io);
  }
  store::ModePage* const before = mode_page_.exchange(page.get(), std::memory_order_acq_rel);
  if (before != nullptr && before != page.get()) before->let_go();
  stats_.keep_in(counters_of(settings));
}

// A mapped file that somebody cuts short ends the process that counts in it, which `io=pread` is
// there to prevent: then no counters are kept.
store::DirectoryCounters* Cache::counters_of(const Settings& settings) {
  if (settings.disk_bytes == 0 || settings.io == store::ReadVia::kPread) return nullptr;
  auto& counters = directory_counters_[settings.dir];
  if (counters == nullptr) {
    counters = std::make_unique<store::DirectoryCounters>(file_system_, settings.dir);
  }
  return counters.get();
}

void Cache::set_mode(Mode mode) {
  MutexLock lock(mutex_);
  given_.insert("mode");
  mode_.store(static_cast<int>(mode), std::memory_order_relaxed);
}

std::map<std::string, std::int64_t> Cache::stats() {
  std::map<std::string, std::int64_t> all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Counter::kCount); ++i) {
    const auto counter = static_cast<Counter>(i);
    if (is_in_stats(counter)) all.emplace(counter_name(counter), stats_.get(counter));
  }
  // While the mode is off the directory is not even opened to be counted.
  const bool may_open = mode() != Mode::kOff;
  const SessionPtr session = this->session();
  for (const auto& tier : session->tiers_.nearest_first) tier->add_sizes(all, may_open);
  return all;
}

std::shared_ptr<RemoteTier> Cache::remote() { return session()->tiers_.remote; }

std::string Cache::metrics() { return metrics_text(stats_); }

std::map<std::string, std::int64_t> Cache::bytes_by_scope() {
  std::map<std::string, std::int64_t> bytes;
  const SessionPtr session = this->session();
  if (mode() == Mode::kOff || session->settings_.disk_bytes == 0) return bytes;
  auto listing = store::Listing::open(file_system_, session->settings_.dir);
  if (!listing.is_ok()) return bytes;
  const auto contexts = listing.value()->contexts();
  if (!contexts.is_ok()) return bytes;
  for (const store::ListedContext& listed : contexts.value()) {
    bytes[listed.context.scope] += listed.payload_bytes;
  }
  return bytes;
}

void Cache::flush() {
  const SessionPtr session = this->session();
  keep_waiting_counts(*session);
  session->tiers_.disk->flush();
  if (session->tiers_.remote != nullptr) session->tiers_.remote->flush();
}

// A process whose calls all passed the cache by has not opened the directory.
void Cache::keep_waiting_counts(Session& session) {
  if (stats_.have_to_wait() && may_write(mode())) session.tiers_.disk->open_if_there();
}

std::int64_t Cache::clear(store::ClearFilter filter, Tier tier) {
  const SessionPtr session = this->session();
  conflicts_.forget();
  const std::string scope = filter.scope;
  const std::string& name_space = session->settings_.name_space;
  if (!filter.covers_everything() || !name_space.empty()) {
    filter.scope = store::scope_range(description_prefix_of(name_space), filter.scope);
  }
  if (tier == Tier::kMemory) return session->tiers_.memory->clear(filter).entries;
  // Before anything goes: an entry that is gone from memory alone is found on disk again.
  if (!may_write(mode())) {
    log(LogLevel::kWarning, "clear-not-allowed",
        "clear: nothing was removed from the directory '" + session->settings_.dir +
            "', since the mode is '" + std::string(mode_name(mode())) +
            "'; clearing it needs the mode 'on' or 'refresh'");
    return 0;
  }
  // The farthest first, so that nothing comes back from there meanwhile.
  if (session->tiers_.remote != nullptr && tier != Tier::kDisk) {
    session->tiers_.remote->clear(scope, filter.older_than_us);
  }
  if (tier == Tier::kRemote) return 0;
  const MemoryStore::Cleared in_memory =
      tier != Tier::kDisk ? session->tiers_.memory->clear(filter) : MemoryStore::Cleared{};
  const std::int64_t cleared = in_memory.only_here + session->tiers_.disk->clear(filter);
  // A scope that was found wrong stays switched off while any of its entries may be left.
  if (tier == Tier::kAll && filter.key_prefix.empty() && filter.older_than_us == 0) {
    verified_.forget(scope);
  }
  return cleared;
}

void Cache::disable_memory_tier() {
  // Reachable for ever, and never freed.
  static auto* const left = new std::vector<std::shared_ptr<MemoryStore>>;
  MutexLock lock(mutex_);
  const SessionPtr current = session_locked();
  Settings settings = current->settings_;
  if (settings.memory_bytes == 0 || settings.disk_bytes == 0) return;
  settings.memory_bytes = 0;
  left->push_back(current->tiers_.memory);
  Tiers tiers = with_empty_memory(settings, tier_parts(settings), current->tiers_);
  session_ = std::make_shared<Session>(std::move(settings), std::move(tiers), shared());
}

void Cache::place(const std::string& scope, const Place& place) {
  places_.set(scope, place);
  const SessionPtr session = this->session();
  for (const MemoryStore::OfScope& held : session->tiers_.memory->entries_of(scope)) {
    Entry moved = *held.entry;
    moved.value = format_.moved(held.entry->value, place);
    if (moved.value == held.entry->value) continue;
    session->tiers_.memory->exchange(held.address, held.entry,
                                     std::make_shared<const Entry>(std::move(moved)));
  }
}

void Cache::close() {
  read_ahead_.stop();
  SessionPtr session;
  {
    MutexLock lock(mutex_);
    session = session_;
  }
  if (session == nullptr) return;
  keep_waiting_counts(*session);
  session->tiers_.disk->close();
  if (session->tiers_.remote != nullptr) session->tiers_.remote->close();
}

}  // namespace modcache::cache
