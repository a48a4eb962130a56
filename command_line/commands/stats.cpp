// SPDX-License-Identifier: Apache-2.0
//
// modcache stats: shows what was counted, how many entries there are, and the space that they take.
#include <algorithm>
#include <set>

#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/counted.h"
#include "command_line/disk_files.h"
#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"

namespace modcache::command_line {
namespace {

constexpr std::int64_t kPatienceToZeroMs = 10'000;

// Returns the totals, for the files.
Totals report_entries(Report& report, const std::vector<KnownContext>& contexts) {
  Totals totals;
  std::set<std::pair<std::string, std::string>> scopes;  // namespace, scope
  for (const KnownContext& context : contexts) {
    totals.add(context.listed);
    scopes.emplace(context.name_space, context.scope());
  }
  report.add("entries", "entries", Cell::count(totals.entries));
  report.add("scopes", "scopes", Cell::count(static_cast<std::int64_t>(scopes.size())));
  report.add("contexts", "", Cell::count(static_cast<std::int64_t>(contexts.size())));
  report.add("value_bytes", "size of the values", Cell::size_bytes(totals.payload_bytes));
  report.add("run_us", "time their runs took", Cell::duration_us(totals.run_us));
  report.add("first_stored_at", "stored first", Cell::time_us(totals.first_stored_at_us));
  report.add("last_stored_at", "stored last", Cell::time_us(totals.last_stored_at_us));
  return totals;
}

void report_disk(Report& report, const DiskFiles& files, const Totals& totals) {
  const auto segments = files.total(DiskFile::Kind::kSegment);
  const auto database = files.total(DiskFile::Kind::kDatabase);
  const auto retired = files.total(DiskFile::Kind::kRetiredSegment);
  report.add("disk_bytes", "size on disk", Cell::size_bytes(files.size_bytes()));
  report.add("segments", "  segments", Cell::count(segments.count));
  report.add("segment_bytes", "  in segments", Cell::size_bytes(segments.size_bytes));
  report.add(
      "dead_bytes", "  of no entry any more",
      Cell::size_bytes(std::max<std::int64_t>(0, segments.size_bytes - totals.record_bytes)));
  report.add("gone_bytes", retired.count > 0 ? "  removed and still read" : "",
             Cell::size_bytes(retired.size_bytes));
  report.add("database_bytes", "  in the database", Cell::size_bytes(database.size_bytes));
  report.add("index_bytes", "  in the shared index",
             Cell::size_bytes(files.total(DiskFile::Kind::kSharedIndex).size_bytes));
  report.add("notes", "  notes", Cell::count(files.total(DiskFile::Kind::kNote).count));
}

Cell mode_of(const std::string& path) {
  if (is_file(path)) return Cell::text(store::directory_mode_name(store::DirectoryMode::kRead));
  const auto mode = store::directory_mode(fs::posix_file_system(), path);
  return mode.is_ok() ? Cell::text(store::directory_mode_name(mode.value())) : Cell::absent();
}

class StatsCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"stats", "[DIR]", "The hit rate, the time saved, and what a directory holds",
         "Counted are all processes that may write to the directory, also those that ended, and\n"
         "running ones to within a second. A pack counts nothing; what a process counted by "
         "itself,\n"
         "modcache.stats() says.\n\n  modcache stats DIR --by-scope\n  modcache stats DIR --zero"});
    arguments.words(0, 1, words_);
    arguments.flag("-z,--zero", "Set what was counted to zero before", is_zeroing_);
    arguments.flag("--by-scope", "With what was counted for each scope", is_by_scope_);
    arguments.flag("--by-day", "With what was counted on each day, in UTC", is_by_day_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    if (is_zeroing_) MODCACHE_RETURN_IF_ERROR(zero(path));
    MODCACHE_ASSIGN_OR_RETURN(auto directory, CacheDirectory::open(path));
    MODCACHE_ASSIGN_OR_RETURN(auto files, DiskFiles::list(path));
    store::CounterTotals counters;
    if (!is_file(path)) {
      MODCACHE_ASSIGN_OR_RETURN(counters, store::read_counters(fs::posix_file_system(), path));
    }
    Report report = this->report(output);
    if (is_file(path)) {
      report.add("counted", "hit rate", Cell::absent_as("a pack counts nothing"));
    } else {
      report_counted(report, counters);
    }
    report.add("directory", "directory", Cell::text(path));
    report.add("is_pack", "", Cell::yes_no(is_file(path)));
    report.add("mode", "mode", mode_of(path));
    const Totals totals = report_entries(report, directory->contexts());
    report_disk(report, files, totals);
    if (is_by_scope_) {
      MODCACHE_ASSIGN_OR_RETURN(const auto manifests, directory->manifests());
      report_by_scope(report, counters, names_of(manifests));
    }
    if (is_by_day_) report_by_day(report, counters);
    report.finish();
    return ExitCode::kSuccess;
  }

 private:
  static Status zero(const std::string& path) {
    if (is_file(path)) {
      return Status::invalid_argument("'" + path + "' is a pack, which counts nothing");
    }
    MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
    const Status status = store::zero_counters(fs::posix_file_system(), path, kPatienceToZeroMs);
    if (status.is_ok()) return status;
    return {status.code(), "what was counted in '" + path +
                               "' cannot be set to zero: " + status.message() +
                               " (it needs a place to write to, and the right to)"};
  }

  bool is_zeroing_ = false;
  bool is_by_scope_ = false;
  bool is_by_day_ = false;
};

}  // namespace

CommandPtr make_stats_command() { return std::make_unique<StatsCommand>(); }

}  // namespace modcache::command_line
