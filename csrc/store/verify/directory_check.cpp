// SPDX-License-Identifier: Apache-2.0
#include "store/verify/directory_check.h"

#include <algorithm>
#include <utility>

#include "store/control/boot.h"
#include "store/control/versions.h"
#include "store/directory/directory_files.h"
#include "store/directory/notes.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/found/stored_record.h"

namespace modcache::store {
namespace {

// The number of rows that are read at a time and then followed in the order of their records.
constexpr std::size_t kRowsAtATime = 16384;

bool ends_with(const std::string& name, std::string_view suffix) {
  return name.size() >= suffix.size() &&
         name.compare(name.size() - suffix.size(), std::string::npos, suffix) == 0;
}

}  // namespace

DirectoryCheck::DirectoryCheck(const Directory& directory, const VerifyOptions& options, Tell tell)
    : directory_(directory),
      options_(options),
      tell_(std::move(tell)),
      readers_(directory, ReadVia::kPread) {}

void DirectoryCheck::tell(Finding::Kind kind, std::string file, std::string what) {
  tell_({kind, kind != Finding::Kind::kLeftover, std::move(file), std::move(what)});
}

void DirectoryCheck::tell_database(std::string what) {
  tell(Finding::Kind::kDatabaseBroken, "index.sqlite", std::move(what));
}

Status DirectoryCheck::absorb(const Status& status) {
  if (status.code() == StatusCode::kForeign) {  // check_kinds() reports it
    database_ = nullptr;
    return Status::ok();
  }
  if (status.code() != StatusCode::kCorruption) return status;
  tell_database(status.message());
  database_ = nullptr;
  return Status::ok();
}

Status DirectoryCheck::run(Verification& verification) {
  result_ = &verification;
  MODCACHE_RETURN_IF_ERROR(check_is_ours());
  if (!check_kinds()) return Status::ok();
  check_control();
  MODCACHE_RETURN_IF_ERROR(absorb(check_database()));
  MODCACHE_RETURN_IF_ERROR(absorb(check_rows()));
  MODCACHE_RETURN_IF_ERROR(absorb(check_segments()));
  MODCACHE_RETURN_IF_ERROR(check_notes());
  return check_files();
}

bool DirectoryCheck::was_replaced() const {
  fs::FileSystem& file_system = directory_.file_system();
  auto info = file_system.info(directory_.database_path());
  const bool is_same =
      info.is_ok() ? info.value().is_same_file(database_file_) : database_file_.inode == 0;
  if (!is_same || (control_ != nullptr && control_->epoch() != epoch_)) return true;
  // Another page has other counters, which no longer tell what was removed meanwhile.
  auto control = file_system.info(directory_.control_path());
  if (control.is_ok() && !control.value().is_same_file(control_file_)) return true;
  if (is_shared_) return false;
  auto log = file_system.info(directory_.wal_path());
  const fs::FileInfo log_file = log.is_ok() ? log.value() : fs::FileInfo();
  return log_file.changed_ns != log_file_.changed_ns ||
         (info.is_ok() && info.value().changed_ns != database_file_.changed_ns);
}

Status DirectoryCheck::check_is_ours() {
  fs::FileSystem& file_system = directory_.file_system();
  MODCACHE_ASSIGN_OR_RETURN(auto info, file_system.info(directory_.path()));
  const std::string paths[] = {directory_.database_path(), directory_.segments_path(),
                               directory_.control_path(), directory_.lock_path()};
  const bool is_ours =
      info.is_directory && std::any_of(std::begin(paths), std::end(paths), [&](const auto& path) {
        return file_system.name_info(path).is_ok();
      });
  if (!is_ours) {
    return Status::invalid_argument("'" + directory_.path() + "' is no directory of modcache");
  }
  return check_versions(directory_);
}

bool DirectoryCheck::check_kinds() {
  bool has_segments = true;
  const DirectoryFiles files = look_at_files(directory_);
  for (const ForeignFile& file : files.foreign) {
    // Files that are read and not written are normal in another user's directory.
    const bool is_damage = file.use != ForeignFile::Use::kWritten &&
                           (files.is_own || file.use != ForeignFile::Use::kRead);
    has_segments = has_segments && file.name != "segments";
    tell_({Finding::Kind::kForeignFile, is_damage, file.name, file.status.message()});
  }
  return has_segments;
}

void DirectoryCheck::check_control() {
  auto info = directory_.file_system().info(directory_.control_path());
  if (info.is_ok()) control_file_ = info.value();
  auto control = ControlPage::open(directory_.file_system(), directory_.control_path(),
                                   ReadVia::kPread, false);
  if (control.is_ok()) {
    control_ = std::move(control).value();
    epoch_ = control_->epoch();
    committed_ = control_->surely_committed(boot_number(directory_.file_system()));
  } else if (!control.is_not_found() && control.status().code() != StatusCode::kForeign) {
    tell(Finding::Kind::kControlBroken, "control", control.status().message());
  }
}

Status DirectoryCheck::open_database() {
  fs::FileSystem& file_system = directory_.file_system();
  auto info = file_system.info(directory_.database_path());
  if (info.is_ok()) database_file_ = info.value();
  auto log = file_system.info(directory_.wal_path());
  if (log.is_ok()) log_file_ = log.value();
  MODCACHE_ASSIGN_OR_RETURN(database_, DatabaseCheck::open(directory_, options_.patience_ms));
  is_shared_ = database_->sees_others();
  return Status::ok();
}

Status DirectoryCheck::check_database() {
  const Status opened = open_database();
  if (opened.is_not_found()) {
    MODCACHE_ASSIGN_OR_RETURN(auto segments, directory_.segments());
    if (!segments.empty()) tell_database("it is not there");
    return Status::ok();
  }
  MODCACHE_RETURN_IF_ERROR(opened);
  MODCACHE_ASSIGN_OR_RETURN(auto contradictions, database_->contradictions());
  for (std::string& contradiction : contradictions) tell_database(std::move(contradiction));
  MODCACHE_ASSIGN_OR_RETURN(auto last_sequence, database_->last_sequence());
  const bool has_page = directory_.file_system().name_info(directory_.control_path()).is_ok();
  if (control_ == nullptr && !has_page && last_sequence > 0) {
    tell(Finding::Kind::kControlBroken, "control", "it is not there");
  }
  if (control_ != nullptr && !control_->is_plausible(last_sequence)) {
    tell(Finding::Kind::kControlBroken, "control", "its counters are impossible");
  } else if (control_ != nullptr && last_sequence < committed_) {
    tell_database("it has lost its last transactions");
  }
  MODCACHE_ASSIGN_OR_RETURN(auto counts, database_->segment_counts());
  for (const auto& count : counts) {
    if (count.named == count.entries) continue;
    tell(Finding::Kind::kRowsLost, file_of(count.segment),
         "the database says that it has " + std::to_string(count.named) + " entries, and names " +
             std::to_string(count.entries));
  }
  MODCACHE_ASSIGN_OR_RETURN(progress_.entries, database_->count_entries());
  // Read before the segments are listed, as the records that they need were written before them.
  MODCACHE_ASSIGN_OR_RETURN(clears_, database_->clears());
  MODCACHE_ASSIGN_OR_RETURN(contexts_, database_->contexts_in_use());
  return Status::ok();
}

void DirectoryCheck::forget_retired() {
  const std::uint64_t reclaims = control_ == nullptr ? 0 : control_->reclaims();
  if (std::exchange(seen_reclaims_, reclaims) != reclaims) readers_.forget_retired();
}

Status DirectoryCheck::check_rows() {
  DatabaseCheck::Row last;
  while (database_ != nullptr) {
    MODCACHE_ASSIGN_OR_RETURN(auto rows, database_->rows_after(last, kRowsAtATime));
    if (rows.empty()) return Status::ok();
    forget_retired();
    last = rows.back();
    // Sorted, so that the segments are read in the order of their bytes.
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return std::make_pair(a.location.segment, a.location.offset) <
             std::make_pair(b.location.segment, b.location.offset);
    });
    for (const DatabaseCheck::Row& row : rows) MODCACHE_RETURN_IF_ERROR(check_row(row));
    if (options_.on_progress) options_.on_progress(progress_);
  }
  return Status::ok();
}

Status DirectoryCheck::check_row(const DatabaseCheck::Row& first) {
  ++result_->entries;
  ++progress_.entries_done;
  // This was reported before, as a contradiction in the database.
  if (first.context == nullptr || first.location.segment == 0) return Status::ok();
  DatabaseCheck::Row row = first;
  while (true) {
    const Status status = look_at(row);
    if (status.is_ok()) return Status::ok();
    MODCACHE_ASSIGN_OR_RETURN(auto now, database_->row(row.context_id, row.key));
    // The row was removed meanwhile, or its number belongs to another context now.
    if (!now || now->context == nullptr || now->context->digest != row.context->digest) {
      --result_->entries;
      return Status::ok();
    }
    if (!now->is_same_place(row)) {
      row = *std::move(now);
      continue;
    }
    Finding finding;
    finding.kind = Finding::Kind::kEntryBroken;
    if (status.code() == StatusCode::kInvalidArgument) finding.kind = Finding::Kind::kValueRefused;
    if (status.code() == StatusCode::kIoError) finding.kind = Finding::Kind::kUnreadable;
    finding.file = file_of(row.location.segment);
    finding.what = status.message();
    finding.scope = row.context->scope;
    finding.key = row.key;
    finding.context = row.context->digest;
    finding.sequence = row.location.sequence;
    finding.offset = row.location.offset;
    broken_rows_.insert(mark_of(finding.context, finding.key, finding.sequence));
    broken_rows_.insert(mark_of_place(row.location.segment, row.location.offset));
    tell_(std::move(finding));
    return Status::ok();
  }
}

// kInvalidArgument: the caller's check refused the value.
Status DirectoryCheck::look_at(const DatabaseCheck::Row& row) {
  std::string header;
  MODCACHE_RETURN_IF_ERROR(read_whole(row, &header));
  const std::uint64_t payload_size_bytes = row.location.payload_size_bytes;
  if (options_.check_value) {
    const Status value =
        options_.check_value({row.context->scope, row.key, header, payload_size_bytes});
    if (!value.is_ok()) return Status::invalid_argument(value.message());
  }
  ++result_->whole_entries;
  return Status::ok();
}

Status DirectoryCheck::read_whole(const DatabaseCheck::Row& row, std::string* header) {
  auto reader = readers_.get(row.location.segment);
  if (reader.is_not_found()) return Status::corruption("its segment is gone");
  if (!reader.is_ok()) return reader.status();
  MODCACHE_ASSIGN_OR_RETURN(
      auto record, read_record(reader.value(), row.location, EntryId{*row.context, row.key}));
  if (header != nullptr) *header = record.header;
  std::string payload(record.head.payload_size_bytes, '\0');
  MODCACHE_RETURN_IF_ERROR(read_payload(record, payload.data()));
  const std::uint64_t read_bytes = record.header.size() + payload.size() + kRecordFixedSizeBytes;
  result_->bytes_read += read_bytes;
  progress_.bytes_done += read_bytes;
  return Status::ok();
}

Status DirectoryCheck::check_notes() {
  fs::FileSystem& file_system = directory_.file_system();
  auto names = file_system.list(directory_.notes_path());
  if (names.is_not_found() || names.status().code() == StatusCode::kForeign) return Status::ok();
  if (!names.is_ok()) return names.status();
  for (const std::string& name : names.value()) {
    const std::string file = "notes/" + name;
    if (ends_with(name, ".new")) {
      tell(Finding::Kind::kLeftover, file, "a note in the making");
      continue;
    }
    auto is_whole = is_whole_note(directory_, name);
    if (is_whole.is_not_found() || is_whole.status().code() == StatusCode::kForeign) continue;
    ++result_->notes;
    if (!is_whole.is_ok()) {
      tell(Finding::Kind::kUnreadable, file, is_whole.status().message());
    } else if (!is_whole.value()) {
      tell(Finding::Kind::kNoteBroken, file, "it is no whole note");
    }
  }
  return Status::ok();
}

// Reports files that nobody reads.
Status DirectoryCheck::check_files() {
  fs::FileSystem& file_system = directory_.file_system();
  MODCACHE_ASSIGN_OR_RETURN(auto names, file_system.list(directory_.path()));
  for (const std::string& name : names) {
    if (name == "control.new" || name.rfind("index.sqlite.new", 0) == 0) {
      tell(Finding::Kind::kLeftover, name, "in the making");
    }
  }
  if (file_system.info(directory_.database_path()).is_ok() &&
      file_system.name_info(directory_.lock_path()).is_not_found()) {
    tell(Finding::Kind::kLockMissing, "lock", "it is not there");
  }
  auto segments = file_system.list(directory_.segments_path());
  if (segments.is_not_found()) return Status::ok();
  if (!segments.is_ok()) return segments.status();
  for (const std::string& name : segments.value()) {
    if (ends_with(name, ".seg.new")) {
      tell(Finding::Kind::kLeftover, "segments/" + name, "about to get its name back");
    }
  }
  return Status::ok();
}

}  // namespace modcache::store
