// SPDX-License-Identifier: Apache-2.0
//
// mend_directory() of verify.h. Each round looks, mends, and looks again: a database that was made
// anew shows which of its rows are broken only then.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "store/index/recovery.h"
#include "store/index/tombstone.h"
#include "store/open_directory.h"
#include "store/reclaim/gone_segments.h"
#include "store/segment/segment_writer.h"
#include "store/verify/directory_check.h"
#include "store/verify/verify.h"

namespace modcache::store {
namespace {

constexpr int kMostRounds = 5;
// Rows that are dropped under one lock, which writers wait for.
constexpr std::size_t kDropsAtATime = 256;
// Those of later findings are dropped in the next round.
constexpr std::size_t kMostDropped = 1 << 20;
// Long after any writer is done with a file in the making.
constexpr std::int64_t kAbandonedAfterNs = 60'000'000'000;
constexpr std::uint64_t kSegmentLimitBytes = 16 << 20;

// What one look found that can be mended.
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
  // Two copies of one record, of which one is broken, are a lost row beside a broken one. A rebuild
  // reads no payloads and may name the broken copy again: once it did, that row is dropped.
  bool needs_rebuild(bool was_rebuilt) const {
    const bool has_doubt = was_rebuilt && !broken_entries.empty();
    return has(Finding::Kind::kDatabaseBroken) || (has(Finding::Kind::kRowsLost) && !has_doubt);
  }
};

Result<Damage> look_through(const Directory& directory, const VerifyOptions& options) {
  Damage damage;
  Verification& verification = damage.verification;
  DirectoryCheck check(directory, options, [&](const Finding& finding) {
    ++verification.counts[finding.kind];
    if (finding.is_damage) ++verification.damage;
    if (verification.findings.size() < options.most_findings) {
      verification.findings.push_back(finding);
    }
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

class Mender {
 public:
  Mender(const Directory& directory, const VerifyOptions& options, Mending& mending)
      : directory_(directory),
        file_system_(directory.file_system()),
        options_(options),
        mending_(mending) {}

  Status mend(const Damage& damage) {
    // Before anything is opened, the lock too. What is missing then is mended in the next round.
    if (!damage.foreign_files.empty()) return make_way(damage.foreign_files);
    MODCACHE_RETURN_IF_ERROR(mend_files(damage));
    // What is broken for lack of a segment may not be any more.
    if (has_renamed_) return Status::ok();
    StoreOptions options;
    options.directory = directory_.path();
    options.patience_ms = options_.patience_ms;
    // Makes database, control page and lock where they are missing or none.
    auto opened = open_directory(directory_, options);
    if (!opened.is_ok()) return opened.status();
    opened_ = std::move(opened).value();
    if (opened_.writer == nullptr) {
      return Status::io_error("'" + directory_.path() + "' can only be read");
    }
    if (damage.has(Finding::Kind::kControlBroken)) note("the control page was made anew");
    if (damage.has(Finding::Kind::kLockMissing)) note("the lock was made");
    MODCACHE_RETURN_IF_ERROR(write_again(damage));
    if (damage.needs_rebuild(mending_.was_rebuilt)) return rebuild();
    return drop(damage.broken_entries);
  }

 private:
  void note(std::string step) { mending_.steps.push_back(std::move(step)); }
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

  Status mend_files(const Damage& damage) {
    auto lock_file = file_system_.open(directory_.lock_path(), fs::OpenMode::kReadWriteCreate);
    if (!lock_file.is_ok()) return lock_file.status();
    auto lock = DirectoryLock::take(*lock_file.value(), options_.patience_ms);
    if (!lock.is_ok()) return lock.status();
    for (const std::string& file : damage.leftovers) MODCACHE_RETURN_IF_ERROR(sweep(file));
    for (const std::string& file : damage.notes) MODCACHE_RETURN_IF_ERROR(remove(file));
    for (const std::string& file : damage.segment_files) {
      MODCACHE_RETURN_IF_ERROR(put_aside(file, damage.needs_rebuild(mending_.was_rebuilt)));
    }
    MODCACHE_RETURN_IF_ERROR(remove_gone(directory_).status());
    return rename_back();
  }

  Status remove(const std::string& file) {
    MODCACHE_RETURN_IF_ERROR(file_system_.remove(path_of(file)));
    note(file + " was removed");
    return Status::ok();
  }

  // Files in the making are made under the directory's lock, which is held here, but for notes.
  Status sweep(const std::string& file) {
    auto info = file_system_.info(path_of(file));
    if (!info.is_ok() || file.find(".seg.new") != std::string::npos) return Status::ok();
    const bool is_note = file.rfind("notes/", 0) == 0;
    if (is_note && now_ns() - info.value().modified_ns < kAbandonedAfterNs) return Status::ok();
    if (file.rfind("segments/", 0) == 0) return remove_segment(file);
    return remove(file);
  }

  // Unless a process appends to it, which is told by its lock.
  Status remove_segment(const std::string& file) {
    auto opened = file_system_.open(path_of(file), fs::OpenMode::kReadWrite);
    if (opened.is_not_found()) return Status::ok();
    if (!opened.is_ok()) return opened.status();
    auto is_locked = opened.value()->try_lock();
    if (!is_locked.is_ok() || !is_locked.value()) return is_locked.status();
    return remove(file);
  }

  // Under the name that it is to have; other files may still have that one. What has no name stays
  // until the database was made anew, which must see that something is missing.
  Status put_aside(const std::string& file, bool is_evidence) {
    const auto header = header_of(path_of(file));
    if (!header) return is_evidence ? Status::ok() : remove_segment(file);
    const std::string path = directory_.segment_path(header->id) + ".new";
    if (file_system_.info(path).is_ok()) return remove_segment(file);
    MODCACHE_RETURN_IF_ERROR(file_system_.rename(path_of(file), path));
    note(file + " is segment " + segment_name(header->id) + ", and was renamed");
    return Status::ok();
  }

  Status rename_back() {
    auto names = file_system_.list(directory_.segments_path());
    if (names.is_not_found()) return Status::ok();
    if (!names.is_ok()) return names.status();
    for (const std::string& name : names.value()) {
      const std::string from = directory_.segments_path() + "/" + name;
      const auto header = header_of(from);
      if (!header || from != directory_.segment_path(header->id) + ".new") continue;
      if (file_system_.info(directory_.segment_path(header->id)).is_ok()) {
        MODCACHE_RETURN_IF_ERROR(remove_segment("segments/" + name));
      } else {
        MODCACHE_RETURN_IF_ERROR(file_system_.rename(from, directory_.segment_path(header->id)));
        has_renamed_ = true;
      }
    }
    return Status::ok();
  }

  std::optional<SegmentHeader> header_of(const std::string& path) {
    auto file = file_system_.open(path, fs::OpenMode::kRead);
    if (!file.is_ok()) return std::nullopt;
    char bytes[kSegmentHeaderSizeBytes];
    auto count = file.value()->read_at(0, bytes, sizeof bytes);
    if (!count.is_ok()) return std::nullopt;
    auto header = decode_segment_header({bytes, count.value()});
    if (!header.is_ok()) return std::nullopt;
    return header.value();
  }

  // Declarations and clears that a rebuild needs and would not find.
  Status write_again(const Damage& damage) {
    if (damage.undeclared.empty() && damage.lost_clears.empty()) return Status::ok();
    std::vector<NewRecord> records;
    for (const Context& context : damage.undeclared) {
      NewRecord record;
      record.head.kind = RecordKind::kContext;
      record.head.context = context.digest;
      record.head.payload_size_bytes = context.description.size();
      record.context = nullptr;
      record.key = context.scope;
      record.payload = context.description.data();
      records.push_back(record);
    }
    for (const Clear& clear : damage.lost_clears) records.push_back(tombstone_of(clear));
    SegmentWriter writer(directory_, kSegmentLimitBytes);
    MODCACHE_RETURN_IF_ERROR(writer.append(records).status());
    note(std::to_string(records.size()) + " declarations and clears were written again");
    return writer.sync();
  }

  Status rebuild() {
    auto lock = this->lock();
    if (!lock.is_ok()) return lock.status();
    opened_.reader = nullptr;
    opened_.writer = nullptr;
    // Processes that have the old database open see by the epoch that it is no longer the one.
    opened_.control->renew_epoch();
    MODCACHE_RETURN_IF_ERROR(rebuild_database(directory_));
    auto index = Index::open(directory_.file_system(), directory_.database_path(),
                             Database::Mode::kWrite, options_.patience_ms);
    if (!index.is_ok()) return index.status();
    auto last_sequence = index.value()->last_sequence();
    if (!last_sequence.is_ok()) return last_sequence.status();
    opened_.control->set_committed(last_sequence.value());
    opened_.control->add_removal();
    note("the database was made anew from the segments");
    mending_.was_rebuilt = true;
    return opened_.control->raise_sequence(last_sequence.value() + 1);
  }

  Status drop(const std::vector<Finding>& entries) {
    SegmentWriter segments(directory_, kSegmentLimitBytes);
    for (std::size_t first = 0; first < entries.size(); first += kDropsAtATime) {
      auto lock = this->lock();
      if (!lock.is_ok()) return lock.status();
      // Not told of these rows, the shared index is made anew.
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
    auto replaces = opened_.writer->replaces(entry.context, entry.key, entry.sequence);
    if (!replaces.is_ok()) return replaces.is_not_found() ? Status::ok() : replaces.status();
    std::optional<std::uint64_t> with_tombstone;
    if (replaces.value() || opened_.control->bears_last_sequence(entry.sequence)) {
      // Else a rebuild would bring back what the entry replaced, or miss the last sequence.
      const Clear clear =
          clear_of_replaced({entry.context, entry.scope, ""}, entry.key, entry.sequence);
      auto places = segments.append({tombstone_of(clear)});
      if (!places.is_ok()) return places.status();
      with_tombstone = places.value().front().segment;
    }
    auto is_dropped =
        opened_.writer->drop(entry.context, entry.key, entry.sequence, with_tombstone);
    if (!is_dropped.is_ok()) return is_dropped.status();
    if (is_dropped.value()) ++mending_.dropped;
    return Status::ok();
  }

  const Directory& directory_;
  fs::FileSystem& file_system_;
  const VerifyOptions& options_;
  Mending& mending_;
  bool has_renamed_ = false;
  OpenedDirectory opened_;
};

}  // namespace

Result<Mending> mend_directory(fs::FileSystem& file_system, const VerifyOptions& options) {
  const Directory directory = Directory::at(file_system, options.directory);
  Mending mending;
  for (int round = 0;; ++round) {
    auto damage = look_through(directory, options);
    if (!damage.is_ok()) return damage.status();
    mending.after = damage.value().verification;
    if (round == 0) mending.before = mending.after;
    const bool is_done = mending.after.is_clean() && (round > 0 || mending.after.findings.empty());
    if (is_done || round == kMostRounds) break;
    Mender mender(directory, options, mending);
    MODCACHE_RETURN_IF_ERROR(mender.mend(damage.value()));
  }
  mending.recovered =
      std::max<std::int64_t>(0, mending.after.entries - (mending.before.entries - mending.dropped));
  return mending;
}

}  // namespace modcache::store
