// SPDX-License-Identifier: Apache-2.0
#include "store/counters/counter_totals.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "store/counters/counter_file.h"
#include "store/counters/totals_file.h"
#include "store/directory/directory_lock.h"

namespace modcache::store {
namespace {

using DaysByPair = std::map<std::pair<std::int32_t, std::string>, Counts>;

struct ProcessFile {
  std::string path;
  ReadCounters read;
  bool is_live = false;
  std::unique_ptr<fs::File> held;  // keeps everybody else away from one whose process ended
};

enum class Purpose { kToRead, kToTakeAway };

void add_days(const std::vector<CountedDay>& days, DaysByPair& sum) {
  for (const CountedDay& day : days) add_counts(day.counts, sum[{day.day, day.scope}]);
}

std::vector<CountedDay> in_order(DaysByPair sum) {
  std::vector<CountedDay> days;
  days.reserve(sum.size());
  for (auto& [pair, counts] : sum) {
    if (counts != Counts{}) days.push_back({pair.second, pair.first, counts});
  }
  return days;
}

// Adds the oldest days up to one row until there are few enough.
DaysByPair bounded(DaysByPair sum) {
  if (sum.size() <= kMostCountedDays) return sum;
  Counts oldest{};
  std::int32_t day = 0;
  while (sum.size() >= kMostCountedDays) {
    day = sum.begin()->first.first;
    add_counts(sum.begin()->second, oldest);
    sum.erase(sum.begin());
  }
  add_counts(oldest, sum[{day, ""}]);
  return sum;
}

// Opens the file of a process; to take it away it is held where nobody else does. Whoever only
// reads holds nothing: others would take the process for one that runs. Nothing: it is none that
// can be read.
std::optional<ProcessFile> open_process_file(fs::FileSystem& file_system, std::string path,
                                             Purpose purpose) {
  using Hold = fs::File::Hold;
  const bool takes = purpose == Purpose::kToTakeAway;
  auto file = file_system.open(path, takes ? fs::OpenMode::kReadWrite : fs::OpenMode::kRead);
  const bool may_hold = takes && file.is_ok();
  if (!file.is_ok()) file = file_system.open(path, fs::OpenMode::kRead);
  if (!file.is_ok()) return std::nullopt;
  const auto held = may_hold ? file.value()->try_hold(Hold::kExclusive) : Result<bool>(false);
  auto read = read_counter_file(*file.value());
  if (!read.is_ok()) return std::nullopt;
  ProcessFile found;
  found.path = std::move(path);
  found.read = std::move(read).value();
  const auto other = file.value()->other_hold();
  found.is_live = other.is_ok() && other.value() == Hold::kShared;
  if (held.is_ok() && held.value()) found.held = std::move(file).value();
  return found;
}

std::vector<ProcessFile> process_files(const Directory& directory, Purpose purpose) {
  std::vector<ProcessFile> files;
  const auto names = directory.file_system().list(directory.counters_path());
  if (!names.is_ok()) return files;
  for (const std::string& name : names.value()) {
    if (!is_counter_file_name(name)) continue;
    auto file =
        open_process_file(directory.file_system(), directory.counters_path() + '/' + name, purpose);
    if (file.has_value()) files.push_back(std::move(*file));
  }
  return files;
}

bool is_in(const TotalsFile& totals, const ProcessFile& file) {
  return std::find(totals.gathered.begin(), totals.gathered.end(), file.read.id) !=
         totals.gathered.end();
}

// Adds up the totals and the files that are not in them.
DaysByPair sum_of(const TotalsFile& totals, const std::vector<ProcessFile>& files) {
  DaysByPair sum;
  add_days(totals.days, sum);
  for (const ProcessFile& file : files) {
    if (!is_in(totals, file)) add_days(file.read.days, sum);
  }
  return sum;
}

Status check_has_counters(fs::FileSystem& file_system, const std::string& path) {
  MODCACHE_ASSIGN_OR_RETURN(auto info, file_system.info(path));
  if (info.is_directory) return Status::ok();
  return Status::invalid_argument("'" + path + "' is a file; only a directory has counters");
}

// Removes the files whose counts are in the totals for good, which the next gathering forgets.
void remove_gathered(fs::FileSystem& file_system, const std::vector<ProcessFile>& files,
                     const TotalsFile& totals) {
  for (const ProcessFile& file : files) {
    if (file.held != nullptr && is_in(totals, file)) (void)file_system.remove(file.path);
  }
}

// Since when the totals count, with this file.
std::int64_t since_us_with(const ProcessFile& file, const TotalsFile& totals) {
  if (totals.since_us == 0) return file.read.created_us;
  return totals.was_zeroed ? totals.since_us : std::min(totals.since_us, file.read.created_us);
}

// Removes files that processes died over before they had their names. Nobody takes an hour for one.
void remove_abandoned(const Directory& directory) {
  constexpr std::int64_t kAbandonedAfterNs = 3'600'000'000'000;
  const auto names = directory.file_system().list(directory.counters_path());
  if (!names.is_ok()) return;
  for (const std::string& name : names.value()) {
    if (name.size() < 4 || name.compare(name.size() - 4, 4, ".new") != 0) continue;
    const std::string path = directory.counters_path() + '/' + name;
    const auto info = directory.file_system().name_info(path);
    if (!info.is_ok() || now_ns() - info.value().modified_ns < kAbandonedAfterNs) continue;
    (void)directory.file_system().remove(path);
  }
}

Status gather_locked(const Directory& directory, const std::vector<ProcessFile>& files) {
  MODCACHE_ASSIGN_OR_RETURN(TotalsFile totals, read_totals_file(directory));
  DaysByPair sum;
  add_days(totals.days, sum);
  std::vector<std::uint64_t> gathered;
  for (const ProcessFile& file : files) {
    const bool is_known = is_in(totals, file);
    // One that an earlier gathering died over stays known as long as it is there.
    if (is_known || file.held != nullptr) gathered.push_back(file.read.id);
    if (is_known || file.held == nullptr) continue;
    add_days(file.read.days, sum);
    totals.since_us = since_us_with(file, totals);
  }
  totals.days = in_order(bounded(std::move(sum)));
  totals.gathered = std::move(gathered);
  MODCACHE_RETURN_IF_ERROR(write_totals_file(directory, totals));
  remove_gathered(directory.file_system(), files, totals);
  remove_abandoned(directory);
  return Status::ok();
}

Result<std::unique_ptr<fs::File>> lock_file_of(const Directory& directory) {
  return directory.file_system().open(directory.lock_path(), fs::OpenMode::kReadWriteCreate);
}

}  // namespace

std::int32_t day_of(std::int64_t us_since_1970) {
  constexpr std::int64_t kDayUs = 86'400'000'000;
  return static_cast<std::int32_t>(us_since_1970 / kDayUs);
}

Result<CounterTotals> read_counters(fs::FileSystem& file_system, const std::string& path) {
  MODCACHE_RETURN_IF_ERROR(check_has_counters(file_system, path));
  const Directory directory = Directory::at(file_system, path);
  // A gathering between the two looks would hide a file from both; few follow one another so fast.
  constexpr int kTries = 3;
  TotalsFile totals;
  std::vector<ProcessFile> files;
  for (int i = 0; i < kTries; ++i) {
    MODCACHE_ASSIGN_OR_RETURN(totals, read_totals_file(directory));
    files = process_files(directory, Purpose::kToRead);
    MODCACHE_ASSIGN_OR_RETURN(const TotalsFile after, read_totals_file(directory));
    if (after.serial == totals.serial) break;
  }
  CounterTotals read;
  read.days = in_order(sum_of(totals, files));
  std::set<std::uint64_t> live;
  for (const ProcessFile& file : files) {
    if (file.is_live) live.insert(file.read.process);
    totals.since_us = since_us_with(file, totals);
  }
  read.live_processes = live.size();
  read.since_us = totals.since_us;
  return read;
}

Status zero_counters(fs::FileSystem& file_system, const std::string& path,
                     std::int64_t patience_ms) {
  MODCACHE_RETURN_IF_ERROR(check_has_counters(file_system, path));
  const Directory directory = Directory::at(file_system, path);
  MODCACHE_ASSIGN_OR_RETURN(auto lock_file, lock_file_of(directory));
  MODCACHE_ASSIGN_OR_RETURN(auto lock, DirectoryLock::take(*lock_file, patience_ms));
  const std::vector<ProcessFile> files = process_files(directory, Purpose::kToTakeAway);
  // One of another version is not replaced.
  MODCACHE_ASSIGN_OR_RETURN(TotalsFile totals, read_totals_file(directory));
  totals.since_us = now_us();
  totals.was_zeroed = true;
  // Files of processes that run stay as they are: the totals say less by as much.
  DaysByPair sum;
  std::vector<std::uint64_t> gathered;
  for (const ProcessFile& file : files) {
    const bool is_left_out = file.held != nullptr || is_in(totals, file);
    if (is_left_out) gathered.push_back(file.read.id);
    if (!is_left_out) add_days(file.read.days, sum);
  }
  totals.gathered = std::move(gathered);
  totals.days.clear();
  for (const auto& [pair, counts] : bounded(std::move(sum))) {
    Counts negative{};
    for (std::size_t i = 0; i < kMostCounters; ++i) {
      negative[i] = static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(counts[i]));
    }
    totals.days.push_back({pair.second, pair.first, negative});
  }
  MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.counters_path()));
  MODCACHE_RETURN_IF_ERROR(write_totals_file(directory, totals));
  remove_gathered(file_system, files, totals);
  return Status::ok();
}

Status gather_counters(const Directory& directory, std::size_t least_files,
                       std::int64_t patience_ms) {
  const auto names = directory.file_system().list(directory.counters_path());
  if (!names.is_ok()) return names.status();
  const auto count =
      std::count_if(names.value().begin(), names.value().end(),
                    [](const std::string& name) { return is_counter_file_name(name); });
  if (static_cast<std::size_t>(count) < least_files) return Status::ok();
  MODCACHE_ASSIGN_OR_RETURN(auto lock_file, lock_file_of(directory));
  MODCACHE_ASSIGN_OR_RETURN(auto lock, DirectoryLock::take(*lock_file, patience_ms));
  const std::vector<ProcessFile> files = process_files(directory, Purpose::kToTakeAway);
  const auto ended = std::count_if(files.begin(), files.end(),
                                   [](const ProcessFile& file) { return file.held != nullptr; });
  if (static_cast<std::size_t>(ended) < std::max<std::size_t>(least_files, 1)) return Status::ok();
  return gather_locked(directory, files);
}

}  // namespace modcache::store
