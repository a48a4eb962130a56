// SPDX-License-Identifier: Apache-2.0
#include "store/open_directory.h"

#include <utility>

#include "store/recovery.h"

namespace modcache::store {
namespace {

bool needs_rebuild(const Status& status) {
  return status.code() == StatusCode::kCorruption || status.code() == StatusCode::kNotFound;
}

Result<std::unique_ptr<Index>> open_writer(const Directory& directory, std::int64_t patience_ms) {
  auto info = directory.file_system().info(directory.database_path());
  if (!info.is_ok()) return info.status();
  return Index::open(directory.database_path(), Database::Mode::kWrite, patience_ms);
}

Status open_databases(const Directory& directory, const StoreOptions& options, ControlPage* control,
                      OpenedDirectory& opened) {
  auto writer = open_writer(directory, options.patience_ms);
  if (needs_rebuild(writer.status())) {
    // Processes that have the old database open see by the epoch that it is no longer the one.
    if (control != nullptr) control->renew_epoch();
    MODCACHE_RETURN_IF_ERROR(rebuild_database(directory));
    writer = open_writer(directory, options.patience_ms);
  }
  if (!writer.is_ok()) return writer.status();
  opened.writer = std::move(writer).value();
  auto reader = Index::open(directory.database_path(), Database::Mode::kWrite, options.patience_ms);
  if (!reader.is_ok()) return reader.status();
  opened.reader = std::move(reader).value();
  return Status::ok();
}

Result<OpenedDirectory> open_for_writing(const Directory& directory, const StoreOptions& options) {
  fs::FileSystem& file_system = directory.file_system();
  OpenedDirectory opened;
  auto lock_file = file_system.open(directory.lock_path(), fs::OpenMode::kReadWriteCreate);
  if (!lock_file.is_ok()) return lock_file.status();
  opened.lock_file = std::move(lock_file).value();
  auto lock = DirectoryLock::take(*opened.lock_file, options.patience_ms);
  if (!lock.is_ok()) return lock.status();
  MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.segments_path()));

  const auto open_control = [&] {
    return ControlPage::open(file_system, directory.control_path(), options.read_via, true);
  };
  auto control = open_control();
  if (!control.is_ok() && !needs_rebuild(control.status())) return control.status();
  MODCACHE_RETURN_IF_ERROR(open_databases(
      directory, options, control.is_ok() ? control.value().get() : nullptr, opened));
  auto last_sequence = opened.writer->last_sequence();
  if (!last_sequence.is_ok()) return last_sequence.status();
  if (!control.is_ok()) {
    MODCACHE_RETURN_IF_ERROR(
        ControlPage::create(file_system, directory.control_path(), last_sequence.value() + 1));
    control = open_control();
    if (!control.is_ok()) return control.status();
  }
  opened.control = std::move(control).value();
  // After power loss the page may be older than the database.
  MODCACHE_RETURN_IF_ERROR(opened.control->raise_sequence(last_sequence.value() + 1));
  opened.epoch = opened.control->epoch();
  auto info = file_system.info(directory.database_path());
  if (!info.is_ok()) return info.status();
  opened.database = info.value();
  return opened;
}

// A connection that reads along with writers needs the WAL and its shared memory, and would make
// them where they are missing. Without them nobody writes, and the database alone tells all.
Result<std::unique_ptr<Index>> open_reader(const Directory& directory, std::int64_t patience_ms,
                                           OpenedDirectory& opened) {
  fs::FileSystem& file_system = directory.file_system();
  const auto wal = file_system.info(directory.wal_path());
  const bool is_live = wal.is_ok() && file_system.info(directory.shared_memory_path()).is_ok();
  opened.is_snapshot = !is_live;
  opened.log_size_bytes = wal.is_ok() ? wal.value().size_bytes : 0;
  Result<std::unique_ptr<Index>> reader = Status::not_found("no database");
  if (is_live) {
    reader = Index::open(directory.database_path(), Database::Mode::kRead, patience_ms);
  } else if (opened.log_size_bytes == 0) {
    reader = Index::open(directory.database_path(), Database::Mode::kImmutable, patience_ms);
  }
  if (reader.is_ok() || reader.status().code() == StatusCode::kBusy ||
      reader.status().code() == StatusCode::kUnsupportedVersion) {
    return reader;
  }
  opened.is_snapshot = true;
  return rebuild_in_memory(directory);
}

Result<OpenedDirectory> open_for_reading(const Directory& directory, const StoreOptions& options) {
  fs::FileSystem& file_system = directory.file_system();
  OpenedDirectory opened;
  auto info = file_system.info(directory.database_path());
  if (info.is_ok()) opened.database = info.value();
  auto control = ControlPage::open(file_system, directory.control_path(), options.read_via, false);
  if (control.is_ok()) {
    opened.control = std::move(control).value();
    opened.epoch = opened.control->epoch();
  }
  auto reader = open_reader(directory, options.patience_ms, opened);
  if (!reader.is_ok()) return reader.status();
  opened.reader = std::move(reader).value();
  return opened;
}

bool is_writable(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  if (!file_system.is_writable(directory.path())) return false;
  for (const std::string& path : {directory.database_path(), directory.control_path(),
                                  directory.lock_path(), directory.segments_path()}) {
    if (file_system.info(path).is_ok() && !file_system.is_writable(path)) return false;
  }
  return true;
}

}  // namespace

Result<DirectoryLock> DirectoryLock::take(fs::File& file, std::int64_t patience_ms) {
  MODCACHE_RETURN_IF_ERROR(fs::lock_within(file, patience_ms));
  return DirectoryLock(&file);
}

DirectoryLock::~DirectoryLock() {
  if (file_ != nullptr) file_->unlock();
}

Result<OpenedDirectory> open_directory(const Directory& directory, const StoreOptions& options) {
  fs::FileSystem& file_system = directory.file_system();
  auto info = file_system.info(directory.path());
  if (info.is_not_found() && options.writable) {
    MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.path()));
    info = file_system.info(directory.path());
  }
  if (!info.is_ok()) return info.status();
  if (!info.value().is_directory) {
    return Status::invalid_argument("'" + directory.path() + "' is a file, not a directory");
  }
  MODCACHE_RETURN_IF_ERROR(check_versions(directory));
  if (options.writable && is_writable(directory)) return open_for_writing(directory, options);
  return open_for_reading(directory, options);
}

}  // namespace modcache::store
