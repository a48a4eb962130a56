// SPDX-License-Identifier: Apache-2.0
//
// Cache: its settings and tiers, modes, totals, clearing, and the end of the process.
#include <cassert>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "cache/cache.h"
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
struct DefaultCache : ProcessWide<DefaultCache> {
  DefaultCache() {
    std::atexit([] {
      for (const CachePtr& one : all_caches()) one->close();
    });
  }

  const CachePtr cache = std::make_shared<Cache>(format_of_process(), fs::posix_file_system(),
                                                 connect_by_library, Cache::Role::kDefault);
};

struct OtherCaches : ProcessWide<OtherCaches> {
  std::vector<std::weak_ptr<Cache>> all MODCACHE_GUARDED_BY(mutex);
};

std::shared_ptr<policy::SeenFilter> make_seen(Admission admission) {
  return admission == Admission::kAll ? nullptr : std::make_shared<policy::SeenFilter>();
}

}  // namespace

void set_value_format(const ValueFormat& format) { process_format = &format; }

const CachePtr& default_cache() { return DefaultCache::instance().cache; }

Result<CachePtr> make_cache(const Options& options) {
  auto made = std::make_shared<Cache>(format_of_process(), fs::posix_file_system(),
                                      connect_by_library, Cache::Role::kOther);
  MODCACHE_RETURN_IF_ERROR(made->configure(options));
  (void)default_cache();  // which closes all of them at the end
  MutexLock lock(OtherCaches::instance().mutex);
  auto& all = OtherCaches::instance().all;
  std::erase_if(all, [](const std::weak_ptr<Cache>& cache) { return cache.expired(); });
  all.push_back(made);
  return CachePtr(std::move(made));
}

std::vector<CachePtr> all_caches() {
  std::vector<CachePtr> found{default_cache()};
  MutexLock lock(OtherCaches::instance().mutex);
  for (const auto& cache : OtherCaches::instance().all) {
    if (CachePtr used = cache.lock()) found.push_back(std::move(used));
  }
  return found;
}

Cache::Cache(const ValueFormat& format, fs::FileSystem& file_system, ConnectRemote connect_remote,
             Role role)
    : format_(format),
      file_system_(file_system),
      connect_remote_(std::move(connect_remote)),
      role_(role),
      read_ahead_(format, places_,
                  [this] { return may_read(combine(process_mode(), directory_mode())); }),
      fork_registration_(hold_across_fork(mutex_)) {}

Cache::~Cache() {
  read_ahead_.stop();
  stop_holding_across_fork(fork_registration_);
  StoreHandle::release(this);
}

ConfigurationPtr Cache::configuration() {
  MutexLock lock(mutex_);
  return configuration_locked();
}

ConfigurationPtr Cache::configuration_locked() {
  if (configuration_ != nullptr) return configuration_;
  Settings settings = first_settings();
  if (const Status status = begin_with(settings); !status.is_ok()) {
    log(LogLevel::kWarning, "shared-directory", status.message() + "; nothing is stored on disk");
    settings.disk_bytes = 0;
    (void)begin_with(std::move(settings));  // without a directory it cannot fail
  }
  return configuration_;
}

Settings Cache::first_settings() const {
  if (role_ == Role::kOther) return default_settings();
  std::vector<std::string> warnings;
  Settings settings = settings_from_environment(warnings);
  set_log_level(settings.log);
  for (const auto& warning : warnings) log_once(LogLevel::kWarning, warning, warning);
  return settings;
}

Status Cache::begin_with(Settings settings) {
  MODCACHE_ASSIGN_OR_RETURN(const TierParts parts, tier_parts(settings));
  int unknown = kModeUnknown;
  mode_.compare_exchange_strong(unknown, static_cast<int>(settings.mode));
  use_directory(settings);
  Tiers tiers = make_tiers(settings, parts);
  auto seen = make_seen(settings.admission);
  use(std::move(settings), std::move(tiers), std::move(seen));
  return Status::ok();
}

Result<TierParts> Cache::tier_parts(const Settings& settings) {
  MODCACHE_ASSIGN_OR_RETURN(
      auto handle,
      StoreHandle::acquire(role_ == Role::kSeparate ? nullptr : this, settings, file_system_));
  return TierParts{format_,      stats_,         places_, std::move(handle), counters_of(settings),
                   file_system_, connect_remote_};
}

void Cache::use(Settings settings, Tiers tiers, std::shared_ptr<policy::SeenFilter> seen) {
  configuration_ = std::make_shared<const Configuration>(
      Configuration{std::move(settings), std::move(tiers), std::move(seen)});
}

Status Cache::configure(const Options& options) {
  ConfigurationPtr replaced;
  {
    MutexLock lock(mutex_);
    MODCACHE_RETURN_IF_ERROR(apply_locked(options, replaced));
    for (const auto& [name, value] : options) given_.insert(name);
  }
  retire_remote_of(replaced);
  return Status::ok();
}

Status Cache::configure_unset(const Options& options) {
  ConfigurationPtr replaced;
  {
    MutexLock lock(mutex_);
    Options unset;
    for (const auto& [name, value] : options) {
      if (!is_given_locked(name)) unset.emplace(name, value);
    }
    MODCACHE_RETURN_IF_ERROR(apply_locked(unset, replaced));
  }
  retire_remote_of(replaced);
  return Status::ok();
}

// Whoever changes the settings waits for the end of a server's connections. Else the last call that
// still uses them would. `replaced`: null where there were none.
void Cache::retire_remote_of(const ConfigurationPtr& replaced) {
  if (replaced == nullptr) return;
  const auto& remote = replaced->tiers.remote;
  if (remote != nullptr && remote != configuration()->tiers.remote) remote->retire();
}

bool Cache::is_given(const std::string& option) {
  MutexLock lock(mutex_);
  return is_given_locked(option);
}

bool Cache::is_given_locked(const std::string& option) {
  return given_.count(option) != 0 || (role_ != Role::kOther && is_in_environment(option));
}

Status Cache::apply_locked(const Options& options, ConfigurationPtr& replaced) {
  const ConfigurationPtr current = configuration_;
  Settings settings = current != nullptr ? current->settings : first_settings();
  MODCACHE_RETURN_IF_ERROR(apply_options(options, settings));
  if (current == nullptr) {
    MODCACHE_RETURN_IF_ERROR(begin_with(settings));
  } else {
    MODCACHE_ASSIGN_OR_RETURN(const TierParts parts, tier_parts(settings));
    Tiers tiers = make_tiers(settings, parts, current->settings, current->tiers);
    use_directory(settings);
    const bool keeps_seen = options.count("admission") == 0;
    use(settings, std::move(tiers), keeps_seen ? current->seen : make_seen(settings.admission));
  }
  if (role_ != Role::kOther || options.count("log") != 0) set_log_level(settings.log);
  if (options.count("match") != 0) conflicts_.forget();
  if (options.count("verify_share") != 0) verified_.forget("");
  if (options.count("mode") != 0) mode_.store(static_cast<int>(settings.mode));
  replaced = current;
  return Status::ok();
}

Options Cache::settings() {
  Settings settings = configuration()->settings;
  settings.mode = process_mode();
  return to_options(settings);
}

// Without the tiers: other caches of the process ask the default one for its mode, and it may never
// be used for anything else.
Mode Cache::mode_from_settings() {
  std::vector<std::string> warnings;  // given when the settings are used
  int mode = kModeUnknown;
  const int from_environment = static_cast<int>(settings_from_environment(warnings).mode);
  if (mode_.compare_exchange_strong(mode, from_environment)) mode = from_environment;
  return static_cast<Mode>(mode);
}

store::ModePage& Cache::mode_page_of_settings() {
  configuration();
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
  const ConfigurationPtr configuration = this->configuration();
  for (const auto& tier : configuration->tiers.nearest_first) tier->add_sizes(all, may_open);
  return all;
}

std::string Cache::metrics() { return metrics_text(stats_); }

std::map<std::string, std::int64_t> Cache::bytes_by_scope() {
  std::map<std::string, std::int64_t> bytes;
  const ConfigurationPtr configuration = this->configuration();
  if (mode() == Mode::kOff || configuration->settings.disk_bytes == 0) return bytes;
  auto listing = store::Listing::open(file_system_, configuration->settings.dir);
  if (!listing.is_ok()) return bytes;
  const auto contexts = listing.value()->contexts();
  if (!contexts.is_ok()) return bytes;
  for (const store::ListedContext& listed : contexts.value()) {
    bytes[listed.context.scope] += listed.payload_bytes;
  }
  return bytes;
}

void Cache::flush() {
  const ConfigurationPtr configuration = this->configuration();
  keep_waiting_counts(*configuration);
  configuration->tiers.disk->flush();
  if (configuration->tiers.remote != nullptr) configuration->tiers.remote->flush();
}

// A process whose calls all passed the cache by has not opened the directory.
void Cache::keep_waiting_counts(const Configuration& configuration) {
  if (stats_.have_to_wait() && may_write(mode())) configuration.tiers.disk->open_if_there();
}

std::int64_t Cache::clear(store::ClearFilter filter, Tier tier) {
  const ConfigurationPtr configuration = this->configuration();
  conflicts_.forget();
  const std::string scope = filter.scope;
  const std::string& name_space = configuration->settings.name_space;
  if (!filter.covers_everything() || !name_space.empty()) {
    filter.scope = store::scope_range(description_prefix_of(name_space), filter.scope);
  }
  // Before anything goes: an entry that is gone from memory alone is found on disk again.
  if (tier != Tier::kMemory && !may_write(mode())) {
    log(LogLevel::kWarning, "clear-not-allowed",
        "clear: nothing was removed from the directory '" + configuration->settings.dir +
            "', since the mode is '" + std::string(mode_name(mode())) +
            "'; clearing it needs the mode 'on' or 'refresh'");
    return 0;
  }
  // Results of calls that began before are not stored. One that is younger than what is cleared is.
  if (filter.older_than_us == 0) generations_.renew(scope);
  if (tier == Tier::kMemory) return configuration->tiers.memory->clear(filter).entries;
  // The farthest first, so that nothing comes back from there meanwhile.
  if (configuration->tiers.remote != nullptr && tier != Tier::kDisk) {
    configuration->tiers.remote->clear(scope, filter.older_than_us);
  }
  if (tier == Tier::kRemote) return 0;
  const MemoryStore::Cleared in_memory =
      tier != Tier::kDisk ? configuration->tiers.memory->clear(filter) : MemoryStore::Cleared{};
  const std::int64_t cleared = in_memory.only_here + configuration->tiers.disk->clear(filter);
  // A scope that was found wrong stays switched off while any of its entries may be left.
  if (tier == Tier::kAll && filter.key_prefix.empty() && filter.older_than_us == 0) {
    verified_.forget(scope);
  }
  return cleared;
}

void Cache::disable_memory_tier() {
  // Never freed.
  static auto* const left = new std::vector<std::shared_ptr<MemoryStore>>;
  MutexLock lock(mutex_);
  const ConfigurationPtr current = configuration_locked();
  Settings settings = current->settings;
  if (settings.memory_bytes == 0 || settings.disk_bytes == 0) return;
  settings.memory_bytes = 0;
  left->push_back(current->tiers.memory);
  auto parts = tier_parts(settings);
  if (!parts.is_ok()) return;
  Tiers tiers = with_empty_memory(settings, parts.value(), current->tiers);
  use(std::move(settings), std::move(tiers), current->seen);
}

void Cache::place(const std::string& scope, const Place& place) {
  places_.set(scope, place);
  const ConfigurationPtr configuration = this->configuration();
  for (const MemoryStore::OfScope& held : configuration->tiers.memory->entries_of(scope)) {
    Entry moved = *held.entry;
    moved.value = format_.moved(held.entry->value, place);
    if (moved.value == held.entry->value) continue;
    configuration->tiers.memory->exchange(held.address, held.entry,
                                          std::make_shared<const Entry>(std::move(moved)));
  }
}

void Cache::close() {
  read_ahead_.stop();
  ConfigurationPtr configuration;
  {
    MutexLock lock(mutex_);
    configuration = configuration_;
  }
  if (configuration == nullptr) return;
  keep_waiting_counts(*configuration);
  configuration->tiers.disk->close();
  if (configuration->tiers.remote != nullptr) configuration->tiers.remote->close();
}

}  // namespace modcache::cache
