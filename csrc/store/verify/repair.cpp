// SPDX-License-Identifier: Apache-2.0
//
// repair_directory() of verify.h. Each round looks, repairs, and looks again, as only a rebuilt
// database shows which of its rows are broken.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "store/directory/directory_lock.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/recovery/open_directory.h"
#include "store/recovery/recovery.h"
#include "store/segment/retired_segments.h"
#include "store/segment/segment_reader.h"
#include "store/segment/segment_writer.h"
#include "store/segment/tombstone.h"
#include "store/verify/directory_check.h"
#include "store/verify/verify.h"

namespace modcache::store {
namespace {

constexpr int kMostRounds = 5;
// Rows that are dropped under one lock, for which writers wait.
constexpr std::size_t kDropsAtATime = 256;
// The next round drops the rows of later findings.
constexpr std::size_t kMostDropped = 1 << 20;
// No writer takes as long as this for a temporary file.
constexpr std::int64_t kNoteAbandonedAfterNs = 60'000'000'000;
constexpr std::uint64_t kSegmentLimitBytes = 16 << 20;

// The damage that one pass found and that can be repaired.
struct Damage {
  Verification verification;
  std::vector<Finding> broken_entries;
  std::vector<std::string> segment_files;
  std::vector<std::string> notes;
  std::vector<std::string> leftovers;
  std::vector<std::string> foreign_files;
  std::vector<Context> undeclared;
  std::vector<Clear> lost_clears;

  bool has(Finding::Kind kind) const { return verification.counts.count(kind) != 0; }
  // Two copies of one record, one of them broken, look like a lost row beside a broken one. A
  // rebuild reads no payloads and may name the broken copy again, so after a rebuild that row is
  // dropped instead.
  bool needs_rebuild(bool was_rebuilt) const {
    const bool has_doubt = was_rebuilt && !broken_entries.empty();
    return has(Finding::Kind::kDatabaseBroken) || (has(Finding::Kind::kRowsLost) && !has_doubt);
  }
};

Result<Damage> look_through(const Directory& directory, const VerifyOptions& options) {
  Damage damage;
  Verification& verification = damage.verification;
  DirectoryCheck check(directory, options, [&](const Finding& finding) {
    verification.add(finding, options.most_findings);
    switch (finding.kind) {
      case Finding::Kind::kEntryBroken:
      case Finding::Kind::kValueRefused:
        if (damage.broken_entries.size() < kMostDropped) damage.broken_entries.push_back(finding);
        break;
      case Finding::Kind::kSegmentBroken: damage.segment_files.push_back(finding.file); break;
      case Finding::Kind::kNoteBroken: damage.notes.push_back(finding.file); break;
      case Finding::Kind::kForeignFile:
        if (finding.is_damage) damage.foreign_files.push_back(finding.file);
        break;
      case Finding::Kind::kLeftover: damage.leftovers.push_back(finding.file); break;
      default: break;
    }
  });
  MODCACHE_RETURN_IF_ERROR(check.run(verification));
  damage.undeclared = check.undeclared();
  damage.lost_clears = check.lost_clears();
  return damage;
}

class Repairer {
 public:
  Repairer(const Directory& directory, const VerifyOptions& options, Repairs& repairs)
      : directory_(directory),
        file_system_(directory.file_system()),
        options_(options),
        repairs_(repairs) {}

  Status repair(const Damage& damage) {
    // Comes before anything is opened, the lock included. The next round repairs what is missing
    // then.
    if (!damage.foreign_files.empty()) return make_way(damage.foreign_files);
    MODCACHE_RETURN_IF_ERROR(repair_files(damage));
    // Findings that a missing segment caused may be gone now.
    if (has_renamed_) return Status::ok();
    StoreOptions options;
    options.directory = directory_.path();
    options.patience_ms = options_.patience_ms;
    // Creates database, control page and lock where they are missing or damaged.
    MODCACHE_ASSIGN_OR_RETURN(opened_, open_directory(directory_, options));
    if (opened_.writer == nullptr) {
      return Status::io_error("'" + directory_.path() + "' can only be read");
    }
    if (damage.has(Finding::Kind::kControlBroken)) note("the control page was made anew");
    if (damage.has(Finding::Kind::kLockMissing)) note("the lock was made");
    MODCACHE_RETURN_IF_ERROR(write_again(damage));
    if (damage.needs_rebuild(repairs_.was_rebuilt)) return rebuild();
    return drop(damage.broken_entries);
  }

 private:
  void note(std::string step) { repairs_.steps.push_back(std::move(step)); }
  std::string path_of(const std::string& file) const { return directory_.path() + "/" + file; }

  Result<DirectoryLock> lock() {
    return DirectoryLock::take(*opened_.lock_file, options_.patience_ms);
  }

  Status make_way(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      if (file == "segments") {
        return Status::foreign("'" + directory_.segments_path() +
                               "' is not a directory, and is left as it is: put the directory "
                               "itself there, or remove what is there");
      }
      const std::string name = file.substr(file.rfind('/') + 1) + ".foreign";
      std::string free_name = name;
      for (int i = 2; file_system_.name_info(path_of(free_name)).is_ok(); ++i) {
        free_name = name + '-' + std::to_string(i);
      }
      MODCACHE_RETURN_IF_ERROR(file_system_.rename(path_of(file), path_of(free_name)));
      note(file + " is no regular file, and was renamed to " + free_name);
    }
    return Status::ok();
  }

  Status repair_files(const Damage& damage) {
    MODCACHE_ASSIGN_OR_RETURN(
        auto lock_file, file_system_.open(directory_.lock_path(), fs::OpenMode::kReadWriteCreate));
    MODCACHE_ASSIGN_OR_RETURN(auto lock, DirectoryLock::take(*lock_file, options_.patience_ms));
    for (const std::string& file : damage.leftovers) MODCACHE_RETURN_IF_ERROR(sweep(file));
    for (const std::string& file : damage.notes) MODCACHE_RETURN_IF_ERROR(remove(file));
    for (const std::string& file : damage.segment_files) {
      MODCACHE_RETURN_IF_ERROR(put_aside(file, damage.needs_rebuild(repairs_.was_rebuilt)));
    }
    MODCACHE_RETURN_IF_ERROR(remove_retired(directory_).status());
    return rename_back();
  }

  Status remove(const std::string& file) {
    MODCACHE_RETURN_IF_ERROR(file_system_.remove(path_of(file)));
    note(file + " was removed");
    return Status::ok();
  }

  // Removes a temporary file. All but those of notes are made under the directory's lock, which
  // this process holds.
  Status sweep(const std::string& file) {
    auto info = file_system_.info(path_of(file));
    if (!info.is_ok() || file.find(".seg.new") != std::string::npos) return Status::ok();
    const bool is_note = file.rfind("notes/", 0) == 0;
    if (is_note && now_ns() - info.value().modified_ns < kNoteAbandonedAfterNs) return Status::ok();
    if (file.rfind("segments/", 0) == 0) return remove_segment(file);
    return remove(file);
  }

  // Removes the file unless a process appends to it and so has its lock.
  Status remove_segment(const std::string& file) {
    auto opened = file_system_.open(path_of(file), fs::OpenMode::kReadWrite);
    if (opened.is_not_found()) return Status::ok();
    if (!opened.is_ok()) return opened.status();
    auto is_locked = opened.value()->try_lock();
    if (!is_locked.is_ok() || !is_locked.value()) return is_locked.status();
    return remove(file);
  }

  // Renames the file to NAME.new, as another file may still have the right name. A file without a
  // header stays until the database was rebuilt, which must see that something is missing.
  Status put_aside(const std::string& file, bool is_evidence) {
    const auto header = header_of(path_of(file));
    if (!header.is_ok()) return is_evidence ? Status::ok() : remove_segment(file);
    const std::string path = directory_.segment_path(header.value().id) + ".new";
    if (file_system_.info(path).is_ok()) return remove_segment(file);
    MODCACHE_RETURN_IF_ERROR(file_system_.rename(path_of(file), path));
    note(file + " is segment " + segment_name(header.value().id) + ", and was renamed");
    return Status::ok();
  }

  Status rename_back() {
    auto names = file_system_.list(directory_.segments_path());
    if (names.is_not_found()) return Status::ok();
    if (!names.is_ok()) return names.status();
    for (const std::string& name : names.value()) {
      const std::string from = directory_.segments_path() + "/" + name;
      const auto header = header_of(from);
      if (!header.is_ok() || from != directory_.segment_path(header.value().id) + ".new") continue;
      // Where the right name is taken, this file is a copy, of which one is enough.
      if (file_system_.info(directory_.segment_path(header.value().id)).is_ok()) {
        MODCACHE_RETURN_IF_ERROR(remove_segment("segments/" + name));
      } else {
        MODCACHE_RETURN_IF_ERROR(
            file_system_.rename(from, directory_.segment_path(header.value().id)));
        has_renamed_ = true;
      }
    }
    return Status::ok();
  }

  Result<SegmentHeader> header_of(const std::string& path) {
    MODCACHE_ASSIGN_OR_RETURN(auto file, file_system_.open(path, fs::OpenMode::kRead));
    return read_segment_header(*file);
  }

  // Writes declarations and clears again that a rebuild needs and would not find.
  Status write_again(const Damage& damage) {
    if (damage.undeclared.empty() && damage.lost_clears.empty()) return Status::ok();
    std::vector<NewRecord> records;
    records.reserve(damage.undeclared.size() + damage.lost_clears.size());
    for (const Context& context : damage.undeclared) {
      records.push_back(declaration_of(context, /*sequence=*/0));
    }
    for (const Clear& clear : damage.lost_clears) records.push_back(tombstone_of(clear));
    SegmentWriter writer(directory_, kSegmentLimitBytes);
    MODCACHE_RETURN_IF_ERROR(writer.append(records).status());
    note(std::to_string(records.size()) + " declarations and clears were written again");
    return writer.sync();
  }

  Status rebuild() {
    MODCACHE_ASSIGN_OR_RETURN(auto lock, this->lock());
    opened_.reader = nullptr;
    opened_.writer = nullptr;
    // Processes that have the old database open learn from the epoch that it was replaced.
    opened_.control->renew_epoch();
    MODCACHE_RETURN_IF_ERROR(rebuild_database(directory_));
    MODCACHE_ASSIGN_OR_RETURN(auto index,
                              Index::open(directory_.file_system(), directory_.database_path(),
                                          Database::Mode::kWrite, options_.patience_ms));
    MODCACHE_ASSIGN_OR_RETURN(auto last_sequence, index->last_sequence());
    opened_.control->set_committed(last_sequence);
    opened_.control->add_removal();
    note("the database was made anew from the segments");
    repairs_.was_rebuilt = true;
    return opened_.control->raise_sequence(last_sequence + 1);
  }

  Status drop(const std::vector<Finding>& entries) {
    SegmentWriter segments(directory_, kSegmentLimitBytes);
    for (std::size_t first = 0; first < entries.size(); first += kDropsAtATime) {
      MODCACHE_ASSIGN_OR_RETURN(auto lock, this->lock());
      // The shared index does not learn of these rows, so it has to be rebuilt.
      opened_.control->set_index_generation(0);
      const std::size_t end = std::min(entries.size(), first + kDropsAtATime);
      for (std::size_t i = first; i < end; ++i) {
        MODCACHE_RETURN_IF_ERROR(drop_row(entries[i], segments));
      }
      opened_.control->add_removal();
    }
    return Status::ok();
  }

  Status drop_row(const Finding& entry, SegmentWriter& segments) {
    auto with_tombstone =
        append_clear_of_dropped(*opened_.writer, *opened_.control, segments,
                                {entry.context, entry.scope, ""}, entry.key, entry.sequence);
    if (with_tombstone.is_not_found()) return Status::ok();
    if (!with_tombstone.is_ok()) return with_tombstone.status();
    MODCACHE_ASSIGN_OR_RETURN(
        auto is_dropped,
        opened_.writer->drop(entry.context, entry.key, entry.sequence, with_tombstone.value()));
    if (is_dropped) ++repairs_.dropped;
    return Status::ok();
  }

  const Directory& directory_;
  fs::FileSystem& file_system_;
  const VerifyOptions& options_;
  Repairs& repairs_;
  bool has_renamed_ = false;
  OpenedDirectory opened_;
};

}  // namespace

Result<Repairs> repair_directory(fs::FileSystem& file_system, const VerifyOptions& options) {
  const Directory directory = Directory::at(file_system, options.directory);
  Repairs repairs;
  for (int round = 0;; ++round) {
    MODCACHE_ASSIGN_OR_RETURN(auto damage, look_through(directory, options));
    repairs.after = damage.verification;
    if (round == 0) repairs.before = repairs.after;
    const bool is_done = repairs.after.is_clean() && (round > 0 || repairs.after.findings.empty());
    if (is_done || round == kMostRounds) break;
    Repairer repairer(directory, options, repairs);
    MODCACHE_RETURN_IF_ERROR(repairer.repair(damage));
  }
  repairs.recovered =
      std::max<std::int64_t>(0, repairs.after.entries - (repairs.before.entries - repairs.dropped));
  return repairs;
}

}  // namespace modcache::store
