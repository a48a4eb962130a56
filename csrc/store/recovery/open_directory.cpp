// SPDX-License-Identifier: Apache-2.0
#include "store/recovery/open_directory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "store/control/boot.h"
#include "store/control/versions.h"
#include "store/directory/directory_files.h"
#include "store/directory/directory_lock.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/index/wal_peek.h"
#include "store/recovery/gap_filling.h"
#include "store/recovery/recovery.h"

namespace modcache::store {
namespace {

bool needs_rebuild(const Status& status) {
  return status.code() == StatusCode::kCorruption || status.code() == StatusCode::kNotFound;
}

Result<std::unique_ptr<Index>> open_writer(const Directory& directory, std::int64_t patience_ms) {
  MODCACHE_RETURN_IF_ERROR(directory.file_system().info(directory.database_path()).status());
  return Index::open(directory.file_system(), directory.database_path(), Database::Mode::kWrite,
                     patience_ms);
}

Status open_databases(const Directory& directory, const StoreOptions& options, ControlPage* control,
                      OpenedDirectory& opened) {
  auto writer = open_writer(directory, options.patience_ms);
  if (needs_rebuild(writer.status())) {
    // Processes that have the old database open learn from the epoch that it was replaced.
    if (control != nullptr) control->renew_epoch();
    MODCACHE_RETURN_IF_ERROR(rebuild_database(directory));
    writer = open_writer(directory, options.patience_ms);
  }
  if (!writer.is_ok()) return writer.status();
  opened.writer = std::move(writer).value();
  MODCACHE_ASSIGN_OR_RETURN(opened.reader,
                            Index::open(directory.file_system(), directory.database_path(),
                                        Database::Mode::kWrite, options.patience_ms));
  return Status::ok();
}

// Returns whether the database lacks transactions: its log was damaged or removed, or an older
// database was put in its place. Entries that were cleared or replaced since would be found again.
// `committed` is what the page said before the database was asked, to which others may have
// committed since.
bool has_lost_transactions(const ControlPage& control, Sequence committed, Sequence last_sequence) {
  return control.is_plausible(last_sequence) && last_sequence < committed;
}

// Returns whether page and database came back from a backup while later segments are still there.
// Entries that were cleared or replaced since would be found again. A process that died before its
// commit leaves records, too, but their sequences were taken from the page.
bool is_older_than_segments(const Directory& directory, const ControlPage* control, Index& index,
                            std::uint64_t boot, Sequence last_sequence) {
  const bool may_have_lost_power = control != nullptr && control->is_of_earlier_boot(boot);
  auto behind = last_sequence_behind(directory, index, may_have_lost_power);
  if (!behind.is_ok() || behind.value() == 0) return false;
  // Asked last, as others take sequences meanwhile.
  const bool is_known = control != nullptr && control->is_plausible(last_sequence);
  const Sequence next = std::max(is_known ? control->next() : last_sequence + 1, last_sequence + 1);
  if (behind.value() < next) return false;
  // Power loss also leaves an older page, together with segments that may be unsafe to rebuild
  // from.
  return !may_have_lost_power || are_whole(directory);
}

bool has_segments(const Directory& directory) {
  auto ids = directory.segments();
  return !ids.is_ok() || !ids.value().empty();
}

// Opens the databases, rebuilding them if transactions were lost. Returns the last sequence.
Result<Sequence> open_databases_as_committed(const Directory& directory,
                                             const StoreOptions& options, std::uint64_t boot,
                                             ControlPage* control, OpenedDirectory& opened) {
  const Sequence committed = control == nullptr ? 0 : control->surely_committed(boot);
  MODCACHE_RETURN_IF_ERROR(open_databases(directory, options, control, opened));
  auto last_sequence = opened.writer->last_sequence();
  const bool is_lost =
      last_sequence.is_ok()
          ? control != nullptr && has_lost_transactions(*control, committed, last_sequence.value())
          : last_sequence.status().code() == StatusCode::kCorruption;
  const bool is_outdated =
      !is_lost && last_sequence.is_ok() &&
      is_older_than_segments(directory, control, *opened.writer, boot, last_sequence.value());
  if (!is_lost && !is_outdated) return last_sequence;
  opened.writer = nullptr;
  opened.reader = nullptr;
  if (control != nullptr) control->renew_epoch();
  MODCACHE_RETURN_IF_ERROR(rebuild_database(directory));
  MODCACHE_RETURN_IF_ERROR(open_databases(directory, options, control, opened));
  last_sequence = opened.writer->last_sequence();
  // The segments may have lost the record of the last sequence, too.
  if (last_sequence.is_ok() && control != nullptr) control->set_committed(last_sequence.value());
  if (is_outdated && last_sequence.is_ok() && control != nullptr) {
    control->raise_superseded(last_sequence.value());
    MODCACHE_RETURN_IF_ERROR(control->raise_sequence(last_sequence.value() + 1));
    // Values that others hold in memory may be outdated now, and are asked for again.
    control->add_clear();
    control->add_removal();
  }
  return last_sequence;
}

Result<OpenedDirectory> open_for_writing(const Directory& directory, const StoreOptions& options) {
  fs::FileSystem& file_system = directory.file_system();
  OpenedDirectory opened;
  MODCACHE_ASSIGN_OR_RETURN(
      opened.lock_file, file_system.open(directory.lock_path(), fs::OpenMode::kReadWriteCreate));
  MODCACHE_ASSIGN_OR_RETURN(auto lock, DirectoryLock::take(*opened.lock_file, options.patience_ms));
  MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.segments_path()));

  const auto open_control = [&] {
    return ControlPage::open(file_system, directory.control_path(), options.read_via, true);
  };
  const std::uint64_t boot = boot_number(file_system);
  auto control = open_control();
  if (!control.is_ok() && !needs_rebuild(control.status())) return control.status();
  MODCACHE_ASSIGN_OR_RETURN(
      auto last_sequence,
      open_databases_as_committed(directory, options, boot,
                                  control.is_ok() ? control.value().get() : nullptr, opened));
  bool may_have_lost_numbers = false;
  if (!control.is_ok() || !control.value()->is_plausible(last_sequence)) {
    may_have_lost_numbers = last_sequence > 0 || has_segments(directory);
    MODCACHE_RETURN_IF_ERROR(
        ControlPage::create(file_system, directory.control_path(), last_sequence + 1, boot));
    control = open_control();
    if (!control.is_ok()) return control.status();
  }
  opened.control = std::move(control).value();
  if (opened.control->is_of_earlier_boot(boot)) {
    may_have_lost_numbers = true;
    MODCACHE_RETURN_IF_ERROR(
        fill_gaps(directory, *opened.writer, opened.control->surely_committed(boot)));
    // Other transactions may be lost as well, and the page does not know of them.
    opened.control->set_committed(last_sequence);
  }
  if (opened.control->committed() == 0 && last_sequence > 0) {
    // The page does not know the database: `modcache mode` made it, or a process died after its
    // first commit.
    may_have_lost_numbers = true;
    opened.control->set_committed(last_sequence);
    opened.control->raise_superseded(last_sequence);
  }
  opened.control->set_boot(boot);
  // After power loss the page may be older than the database, and than records that no row leads
  // to. If their sequences were taken again, a rebuild could take those records for the later ones.
  MODCACHE_RETURN_IF_ERROR(may_have_lost_numbers
                               ? opened.control->raise_sequence_beyond_lost(last_sequence + 1)
                               : opened.control->raise_sequence(last_sequence + 1));
  opened.epoch = opened.control->epoch();
  MODCACHE_ASSIGN_OR_RETURN(opened.database, file_system.info(directory.database_path()));
  return opened;
}

// A connection that reads along with writers needs the WAL and its shared memory, and would create
// them where they are missing. Where they are missing nobody writes, and the database alone is
// complete.
Result<std::unique_ptr<Index>> open_reader(const Directory& directory, std::int64_t patience_ms,
                                           OpenedDirectory& opened) {
  fs::FileSystem& file_system = directory.file_system();
  const LogLook log = look_at_log(directory, patience_ms);
  opened.log_size_bytes = log.size_bytes;
  opened.is_snapshot = !log.is_live;
  const std::uint64_t boot = boot_number(file_system);
  const Sequence committed = opened.control == nullptr ? 0 : opened.control->surely_committed(boot);
  Result<std::unique_ptr<Index>> reader = Status::not_found("no database");
  if (log.is_live) {
    reader =
        Index::open(file_system, directory.database_path(), Database::Mode::kRead, patience_ms);
  } else if (!log.is_read) {
    reader = Index::open(file_system, directory.database_path(), Database::Mode::kImmutable,
                         patience_ms);
  }
  if (reader.is_ok() && opened.control != nullptr) {
    auto last_sequence = reader.value()->last_sequence();
    if (!last_sequence.is_ok()) {
      reader = last_sequence.status();
    } else if (has_lost_transactions(*opened.control, committed, last_sequence.value())) {
      reader = Status::corruption("the database has lost transactions");
    } else if (is_older_than_segments(directory, opened.control.get(), *reader.value(), boot,
                                      last_sequence.value())) {
      reader = Status::corruption("the database is older than the segments");
    }
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
  MODCACHE_ASSIGN_OR_RETURN(opened.reader, open_reader(directory, options.patience_ms, opened));
  return opened;
}

std::string folder_of(const std::string& path) {
  const std::size_t end = path.find_last_of('/');
  if (end == std::string::npos) return ".";
  return end == 0 ? "/" : path.substr(0, end);
}

// Creates the directory and its missing parents so that their names survive power loss: a flush
// syncs only what is inside. A folder that may not be read cannot be synced, which is ignored.
Status make_directory(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  std::vector<std::string> with_new_names;
  for (std::string folder = directory.path(); file_system.info(folder).is_not_found();
       folder = with_new_names.back()) {
    with_new_names.push_back(folder_of(folder));
    if (with_new_names.back() == folder) break;
  }
  MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.path()));
  for (const std::string& folder : with_new_names) (void)file_system.sync_directory(folder);
  return Status::ok();
}

void tell_of(const Status& foreign, const StoreOptions& options) {
  if (options.on_foreign_file) options.on_foreign_file(foreign);
}

void tell_of(const DirectoryFiles& files, ForeignFile::Use use, const StoreOptions& options) {
  for (const ForeignFile& file : files.foreign) {
    if (file.use == use) tell_of(file.status, options);
  }
}

// Reports files that the store can do without only here, where it is clear that the directory is
// used.
Status check_files(const DirectoryFiles& files, const Directory& directory,
                   const StoreOptions& options) {
  MODCACHE_RETURN_IF_ERROR(files.first(ForeignFile::Use::kNeeded));
  if (files.is_written_by_all) {
    const std::string what = "everybody on this machine may write in '" + directory.path() +
                             "', and so change what models return (chmod o-w takes that right)";
    if (options.is_strict) return Status::foreign(what + "; with strict=true it is not used");
    log_once(LogLevel::kWarning, "written-by-all:" + directory.path(), what);
  }
  tell_of(files, ForeignFile::Use::kSpared, options);
  return Status::ok();
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

Result<OpenedDirectory> open_directory(const Directory& directory, const StoreOptions& options) {
  fs::FileSystem& file_system = directory.file_system();
  auto info = file_system.info(directory.path());
  if (info.is_not_found() && options.writable) {
    MODCACHE_RETURN_IF_ERROR(make_directory(directory));
    info = file_system.info(directory.path());
  }
  if (!info.is_ok()) return info.status();
  if (!info.value().is_directory) {
    return Status::invalid_argument("'" + directory.path() + "' is a file, not a directory");
  }
  const DirectoryFiles files = look_at_files(directory);
  MODCACHE_RETURN_IF_ERROR(check_files(files, directory, options));
  MODCACHE_RETURN_IF_ERROR(check_versions(directory));
  if (!options.writable || !is_writable(directory)) return open_for_reading(directory, options);
  tell_of(files, ForeignFile::Use::kRead, options);
  const Status unwritable = files.first(ForeignFile::Use::kWritten);
  if (!unwritable.is_ok()) {
    tell_of(unwritable, options);
    return open_for_reading(directory, options);
  }
  return open_for_writing(directory, options);
}

}  // namespace modcache::store
