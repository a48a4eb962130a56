// SPDX-License-Identifier: Apache-2.0
#include "store/index/recovery.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "store/control/boot.h"
#include "store/control/control_page.h"
#include "store/index/tombstone.h"
#include "store/index/wal_peek.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_writer.h"

namespace modcache::store {
namespace {

// Rows that go into one transaction.
constexpr std::size_t kBatchRows = 4096;
constexpr std::uint64_t kClearSegmentBytes = 1 << 20;

Status newer_database(const Directory& directory, std::int64_t version) {
  return Status::unsupported_version("'" + directory.database_path() + "' has version " +
                                     std::to_string(version) + ", this modcache reads up to " +
                                     std::to_string(kUserVersion));
}

// An immutable connection reads the file's first page and takes no lock. (Reading the file by
// ourselves would be simpler, but closing it would drop the locks that SQLite holds on it for
// another Store of this process.)
Status check_database_version(const Directory& directory) {
  if (!directory.file_system().info(directory.database_path()).is_ok()) return Status::ok();
  auto database = Database::open(directory.file_system(), directory.database_path(),
                                 Database::Mode::kImmutable, 0);
  if (!database.is_ok()) return Status::ok();
  auto application_id = database.value()->query_number("PRAGMA application_id");
  auto version = database.value()->query_number("PRAGMA user_version");
  if (!application_id.is_ok() || application_id.value() != kApplicationId) return Status::ok();
  if (version.is_ok() && version.value() > kUserVersion) {
    return newer_database(directory, version.value());
  }
  const auto in_wal = peek_user_version_in_wal(directory.file_system(), directory.wal_path());
  if (in_wal && *in_wal > kUserVersion) return newer_database(directory, *in_wal);
  return Status::ok();
}

// Adds what segments hold, one after another. A damaged segment gives what is left of it.
class Gatherer final : public SegmentVisitor {
 public:
  // What clears only entries that are there already is added to `narrow`.
  Gatherer(Index& index, std::vector<Clear>& narrow) : index_(index), narrow_(narrow) {}

  void begin(std::uint64_t segment) {
    segment_ = segment;
    declared_.clear();
  }

  Status on_context(const RecordHead& head, std::string_view scope,
                    std::string description) override {
    declared_.insert(head.context);
    // A second declaration says the same; rows point to the first.
    auto& context = contexts_[head.context];
    if (context == nullptr) {
      context = std::make_unique<Context>(
          Context{head.context, std::string(scope), std::move(description)});
    }
    return Status::ok();
  }

  Status on_entry(const RecordHead& head, std::uint64_t offset, std::string_view key) override {
    const Found found{head, segment_, offset, std::string(key)};
    // Its declaration is damaged, but may stand in another segment, too.
    if (declared_.count(head.context) == 0) {
      undeclared_.push_back(found);
      return Status::ok();
    }
    return add(found);
  }

  Status on_clear(const RecordHead& head, std::string_view scope,
                  std::string_view key_prefix) override {
    clears_.push_back(clear_of(head, scope, key_prefix));
    if (clears_.back().is_narrow()) narrow_.push_back(clears_.back());
    return Status::ok();
  }

  void on_gap(std::uint64_t) override { is_incomplete_ = true; }
  void pass_over_segment() { is_incomplete_ = true; }
  // Something may have been there that could not be read.
  bool is_incomplete() const { return is_incomplete_; }

  // Of a segment.
  Status end() {
    MODCACHE_RETURN_IF_ERROR(commit());
    const Status status = index_.restore_clears(segment_, clears_);
    clears_.clear();
    return status;
  }

  // Of all. Without a scope an entry could never be cleared, so one that has none is left out.
  Status finish() {
    for (const Found& found : undeclared_) {
      if (contexts_.count(found.head.context) != 0) MODCACHE_RETURN_IF_ERROR(add(found));
    }
    return commit();
  }

 private:
  struct Found {
    RecordHead head;
    std::uint64_t segment;
    std::uint64_t offset;
    std::string key;
  };

  Status add(const Found& found) {
    const RecordHead& head = found.head;
    NewRow row;
    row.context = contexts_[head.context].get();
    row.location = {found.segment,           found.offset,  head.header_size_bytes,
                    head.payload_size_bytes, head.sequence, head.run_us};
    row.stored_at_us = head.stored_at_us;
    keys_.push_back(found.key);
    rows_.push_back(row);
    return rows_.size() >= kBatchRows ? commit() : Status::ok();
  }

  Status commit() {
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].key = keys_[i];
    const Status status = index_.commit(rows_).status();
    rows_.clear();
    keys_.clear();
    return status;
  }

  Index& index_;
  bool is_incomplete_ = false;
  std::uint64_t segment_ = 0;
  std::unordered_set<Digest128, Digest128Hash> declared_;  // in this segment
  std::vector<Clear>& narrow_;
  std::unordered_map<Digest128, std::unique_ptr<Context>, Digest128Hash> contexts_;
  std::vector<Found> undeclared_;
  std::vector<NewRow> rows_;
  std::vector<std::string> keys_;
  std::vector<Clear> clears_;
};

// What could not be read may have replaced or cleared what can be. Returns the clear that removes
// all of which that is possible; sequence 0: there is none.
Result<Clear> doubtful_entries(const Directory& directory, Index& index, bool is_incomplete) {
  auto control =
      ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kPread, false);
  auto last_sequence = index.last_sequence();
  if (!last_sequence.is_ok()) return last_sequence.status();
  if (!control.is_ok() || !control.value()->is_plausible(last_sequence.value())) return Clear{};
  // Nobody knows what the last records were about.
  const std::uint64_t boot = boot_number(directory.file_system());
  const bool lacks_records = last_sequence.value() < control.value()->surely_committed(boot);
  const Sequence superseded = control.value()->superseded();
  if (superseded == 0 || (!is_incomplete && !lacks_records)) return Clear{};
  return Clear{{}, superseded + 1};
}

// Segments that cannot be read at the moment, which says nothing about what they hold.
enum class Unreadable { kFail, kPassOver };

// Returns the clear of what was left out, to be recorded; sequence 0: there is none.
Result<Clear> gather_segments(const Directory& directory, Unreadable unreadable, Index& index) {
  auto ids = directory.segments();
  if (!ids.is_ok()) return ids.status();
  std::vector<Clear> narrow;
  Gatherer gatherer(index, narrow);
  for (const std::uint64_t id : ids.value()) {
    // With pread, so that a file which shrinks meanwhile is no danger.
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (reader.status().code() == StatusCode::kIoError && unreadable == Unreadable::kFail) {
      return reader.status();
    }
    if (!reader.is_ok()) {
      // Whoever made it may have died before it had a header.
      auto info = directory.file_system().info(directory.segment_path(id));
      const bool is_empty = info.is_ok() && info.value().size_bytes < kSegmentHeaderSizeBytes;
      if (!is_empty) gatherer.pass_over_segment();
      continue;
    }
    gatherer.begin(id);
    MODCACHE_RETURN_IF_ERROR(scan_segment(*reader.value(), gatherer));
    MODCACHE_RETURN_IF_ERROR(gatherer.end());
  }
  MODCACHE_RETURN_IF_ERROR(gatherer.finish());
  MODCACHE_RETURN_IF_ERROR(index.apply_narrow_clears(narrow));
  auto doubtful = doubtful_entries(directory, index, gatherer.is_incomplete());
  if (!doubtful.is_ok() || doubtful.value().sequence == 0) return doubtful;
  MODCACHE_RETURN_IF_ERROR(
      index.clear(doubtful.value(), [](const auto&) { return Result<SegmentPlan>(SegmentPlan{}); })
          .status());
  return doubtful;
}

// So that a later rebuild, which may no longer see that something is missing, leaves it out as
// well.
Status record_clear(const Directory& directory, const Clear& clear) {
  if (clear.sequence == 0) return Status::ok();
  SegmentWriter writer(directory, kClearSegmentBytes);
  MODCACHE_RETURN_IF_ERROR(writer.append({tombstone_of(clear)}).status());
  return writer.sync();
}

}  // namespace

Status check_versions(const Directory& directory) {
  auto control =
      ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kPread, false);
  if (control.status().code() == StatusCode::kUnsupportedVersion) return control.status();
  MODCACHE_RETURN_IF_ERROR(check_database_version(directory));
  auto ids = directory.segments();
  if (!ids.is_ok()) return Status::ok();
  for (const std::uint64_t id : ids.value()) {
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (reader.status().code() == StatusCode::kUnsupportedVersion) return reader.status();
  }
  return Status::ok();
}

Status remove_database(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  // First the database, then its log: a log without a database is removed by whoever makes the
  // next one, but a database whose log is gone would pass for a whole one.
  MODCACHE_RETURN_IF_ERROR(file_system.remove(directory.database_path()));
  MODCACHE_RETURN_IF_ERROR(file_system.remove(directory.wal_path()));
  return file_system.remove(directory.shared_memory_path());
}

bool are_whole(const Directory& directory) {
  auto ids = directory.segments();
  if (!ids.is_ok()) return false;
  return std::all_of(ids.value().begin(), ids.value().end(), [&](std::uint64_t id) {
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (!reader.is_ok()) return false;
    const auto is_whole = ends_with_a_record(*reader.value());
    return is_whole.is_ok() && is_whole.value();
  });
}

Result<Sequence> last_sequence_behind(const Directory& directory, Index& index,
                                      bool with_payloads) {
  auto ids = directory.segments();
  if (!ids.is_ok()) return ids.status();
  Sequence last = 0;
  for (const std::uint64_t id : ids.value()) {
    auto offset = index.last_offset(id);
    if (!offset.is_ok()) return offset.status();
    if (offset.value() == 0) continue;
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (!reader.is_ok()) continue;  // what is damaged tells nothing
    auto found = last_sequence_from(*reader.value(), offset.value(), with_payloads);
    if (found.is_ok()) last = std::max(last, found.value());
    if (!found.is_ok() && with_payloads) return Sequence{0};
  }
  return last;
}

Status rebuild_database(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  const std::string path = directory.new_database_path();
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    MODCACHE_RETURN_IF_ERROR(file_system.remove(path + suffix));
  }
  {
    auto index = Index::create(file_system, path);
    if (!index.is_ok()) return index.status();
    // What is left out now would stay lost.
    auto left_out = gather_segments(directory, Unreadable::kFail, *index.value());
    if (!left_out.is_ok()) return left_out.status();
    MODCACHE_RETURN_IF_ERROR(record_clear(directory, left_out.value()));
    auto entries = index.value()->count_entries();
    if (entries.is_ok() && entries.value() > 0) {
      log(LogLevel::kWarning, "rebuilt:" + directory.path(),
          "the database in '" + directory.path() + "' was missing or broken; " +
              std::to_string(entries.value()) + " entries were found again in the segments");
    }
  }
  {
    auto file = file_system.open(path, fs::OpenMode::kReadWrite);
    if (!file.is_ok()) return file.status();
    MODCACHE_RETURN_IF_ERROR(file.value()->sync_data());
    // SQLite made it by the umask alone; its log and shared memory will have the same rights.
    (void)file_system.restrict_rights(path);
  }
  MODCACHE_RETURN_IF_ERROR(remove_database(directory));
  MODCACHE_RETURN_IF_ERROR(file_system.rename(path, directory.database_path()));
  return file_system.sync_directory(directory.path());
}

Result<std::unique_ptr<Index>> rebuild_in_memory(const Directory& directory) {
  auto index = Index::create(directory.file_system(), "");
  if (!index.is_ok()) return index.status();
  auto left_out = gather_segments(directory, Unreadable::kPassOver, *index.value());
  if (!left_out.is_ok()) return left_out.status();
  return index;
}

}  // namespace modcache::store
