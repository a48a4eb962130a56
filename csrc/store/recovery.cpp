// SPDX-License-Identifier: Apache-2.0
#include "store/recovery.h"

#include <utility>

#include "base/log.h"
#include "store/control_page.h"
#include "store/segment_scan.h"
#include "store/wal_peek.h"

namespace modcache::store {
namespace {

// Rows that go into one transaction.
constexpr std::size_t kBatchRows = 4096;

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
  auto database = Database::open(directory.database_path(), Database::Mode::kImmutable, 0);
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

// Adds what one segment holds. A damaged segment gives what is left of it.
class Gatherer final : public SegmentVisitor {
 public:
  Gatherer(Index& index, std::uint64_t segment) : index_(index), segment_(segment) {}

  Status on_context(const RecordHead& head, std::string_view scope,
                    std::string description) override {
    // A second declaration says the same; rows point to the first.
    auto& context = contexts_[head.context];
    if (context == nullptr) {
      context = std::make_unique<Context>(
          Context{head.context, std::string(scope), std::move(description)});
    }
    return Status::ok();
  }

  Status on_entry(const RecordHead& head, std::uint64_t offset, std::string_view key) override {
    const auto context = contexts_.find(head.context);
    // Its declaration is damaged. Without a scope it could never be cleared.
    if (context == contexts_.end()) return Status::ok();
    keys_.emplace_back(key);
    NewRow row;
    row.context = context->second.get();
    row.location = {segment_,      offset,     head.header_size_bytes, head.payload_size_bytes,
                    head.sequence, head.run_us};
    row.stored_at_us = head.stored_at_us;
    rows_.push_back(row);
    return rows_.size() >= kBatchRows ? commit() : Status::ok();
  }

  Status on_clear(const RecordHead& head, std::string_view scope,
                  std::string_view key_prefix) override {
    clears_.push_back({{std::string(scope), std::string(key_prefix)}, head.sequence});
    return Status::ok();
  }

  Status finish() {
    MODCACHE_RETURN_IF_ERROR(commit());
    return index_.restore_clears(segment_, clears_);
  }

 private:
  Status commit() {
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].key = keys_[i];
    const Status status = index_.commit(rows_).status();
    rows_.clear();
    keys_.clear();
    return status;
  }

  Index& index_;
  const std::uint64_t segment_;
  std::unordered_map<Digest128, std::unique_ptr<Context>, Digest128Hash> contexts_;
  std::vector<NewRow> rows_;
  std::vector<std::string> keys_;
  std::vector<Clear> clears_;
};

Status gather_segments(const Directory& directory, Index& index) {
  auto ids = directory.segments();
  if (!ids.is_ok()) return ids.status();
  for (const std::uint64_t id : ids.value()) {
    // With pread, so that a file which shrinks meanwhile is no danger.
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (!reader.is_ok()) continue;
    Gatherer gatherer(index, id);
    MODCACHE_RETURN_IF_ERROR(scan_segment(*reader.value(), gatherer));
    MODCACHE_RETURN_IF_ERROR(gatherer.finish());
  }
  return Status::ok();
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

Status rebuild_database(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  const std::string path = directory.new_database_path();
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    MODCACHE_RETURN_IF_ERROR(file_system.remove(path + suffix));
  }
  {
    auto index = Index::create(path);
    if (!index.is_ok()) return index.status();
    MODCACHE_RETURN_IF_ERROR(gather_segments(directory, *index.value()));
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
  }
  MODCACHE_RETURN_IF_ERROR(remove_database(directory));
  MODCACHE_RETURN_IF_ERROR(file_system.rename(path, directory.database_path()));
  return file_system.sync_directory(directory.path());
}

Result<std::unique_ptr<Index>> rebuild_in_memory(const Directory& directory) {
  auto index = Index::create("");
  if (!index.is_ok()) return index.status();
  MODCACHE_RETURN_IF_ERROR(gather_segments(directory, *index.value()));
  return index;
}

}  // namespace modcache::store
