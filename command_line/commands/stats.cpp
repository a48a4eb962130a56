// SPDX-License-Identifier: Apache-2.0
//
// modcache stats: how much there is, and what room it takes.
#include <algorithm>
#include <set>

#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/disk_files.h"
#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"

namespace modcache::command_line {
namespace {

struct Sums {
  std::int64_t entries = 0;
  std::int64_t payload_bytes = 0;
  std::int64_t record_bytes = 0;
  std::int64_t run_us = 0;
  std::int64_t first_stored_at_us = 0;
  std::int64_t last_stored_at_us = 0;
  std::set<std::pair<std::string, std::string>> scopes;  // namespace, scope
};

Sums sums_of(const std::vector<KnownContext>& contexts) {
  Sums sums;
  for (const KnownContext& context : contexts) {
    const store::ListedContext& listed = context.listed;
    sums.first_stored_at_us = sums.entries == 0
                                  ? listed.first_stored_at_us
                                  : std::min(sums.first_stored_at_us, listed.first_stored_at_us);
    sums.last_stored_at_us = std::max(sums.last_stored_at_us, listed.last_stored_at_us);
    sums.entries += listed.entries;
    sums.payload_bytes += listed.payload_bytes;
    sums.record_bytes += listed.record_bytes;
    sums.run_us += listed.run_us;
    sums.scopes.emplace(context.name_space, context.scope());
  }
  return sums;
}

void report_sums(Report& report, const Sums& sums, std::size_t contexts) {
  report.add("entries", "entries", Cell::count(sums.entries));
  report.add("scopes", "scopes", Cell::count(static_cast<std::int64_t>(sums.scopes.size())));
  report.add("contexts", "", Cell::count(static_cast<std::int64_t>(contexts)));
  report.add("value_bytes", "size of the values", Cell::size_bytes(sums.payload_bytes));
  report.add("run_us", "time their runs took", Cell::duration_us(sums.run_us));
  const bool has_any = sums.entries > 0;
  report.add("first_stored_at", "stored first",
             has_any ? Cell::time_us(sums.first_stored_at_us) : Cell::absent());
  report.add("last_stored_at", "stored last",
             has_any ? Cell::time_us(sums.last_stored_at_us) : Cell::absent());
}

void report_disk(Report& report, const DiskFiles& files, const Sums& sums) {
  const auto segments = files.total(DiskFile::Kind::kSegment);
  const auto database = files.total(DiskFile::Kind::kDatabase);
  const auto gone = files.total(DiskFile::Kind::kGoneSegment);
  report.add("disk_bytes", "size on disk", Cell::size_bytes(files.size_bytes()));
  report.add("segments", "  segments", Cell::count(segments.count));
  report.add("segment_bytes", "  in segments", Cell::size_bytes(segments.size_bytes));
  report.add("dead_bytes", "  of no entry any more",
             Cell::size_bytes(std::max<std::int64_t>(0, segments.size_bytes - sums.record_bytes)));
  report.add("gone_bytes", gone.count > 0 ? "  removed and still read" : "",
             Cell::size_bytes(gone.size_bytes));
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
    arguments.describe({"stats", "[DIR]", "How much a directory holds, and what room that takes",
                        "What the processes that use it counted (hits, misses) is theirs alone: "
                        "modcache.stats() says it."});
    arguments.words(0, 1, words_);
  }

  Result<ExitCode> run(Output& output) override {
    auto path = directory_before(words_, 0);
    if (!path.is_ok()) return path.status();
    auto directory = CacheDirectory::open(path.value());
    if (!directory.is_ok()) return directory.status();
    auto files = DiskFiles::list(path.value());
    if (!files.is_ok()) return files.status();
    const auto& contexts = directory.value()->contexts();
    const Sums sums = sums_of(contexts);
    Report report = this->report(output);
    report.add("directory", "directory", Cell::text(path.value()));
    report.add("is_pack", "", Cell::yes_no(is_file(path.value())));
    report.add("mode", "mode", mode_of(path.value()));
    report_sums(report, sums, contexts.size());
    report_disk(report, files.value(), sums);
    report.finish();
    return ExitCode::kSuccess;
  }

 private:
  std::vector<std::string> words_;
};

}  // namespace

CommandPtr make_stats_command() { return std::make_unique<StatsCommand>(); }

}  // namespace modcache::command_line
