// SPDX-License-Identifier: Apache-2.0
#include "store/recovery/recovery.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "store/control/boot.h"
#include "store/control/control_page.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/index/clearing.h"
#include "store/index/row_batch.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_writer.h"
#include "store/segment/tombstone.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kClearSegmentBytes = 1 << 20;

// Adds the contents of segments, one after another. From a damaged segment it adds the records that
// can be read.
class Gatherer final : public SegmentVisitor {
 public:
  // `narrow` gets the clears that cover only entries which exist already; they are applied in the
  // end.
  Gatherer(Index& index, std::vector<Clear>& narrow)
      : index_(index), batch_(index), narrow_(narrow) {}

  void begin(std::uint64_t segment) {
    segment_ = segment;
    declared_.clear();
  }

  Status on_context(const RecordHead& head, std::string_view scope,
                    std::string description) override {
    declared_.insert(head.context);
    // A second declaration says the same; rows point to the first one.
    contexts_.try_emplace(head.context,
                          Context{head.context, std::string(scope), std::move(description)});
    return Status::ok();
  }

  Status on_entry(const RecordHead& head, std::uint64_t offset, std::string_view key) override {
    if (declared_.count(head.context) != 0) return add({head, segment_, offset, std::string(key)});
    // The declaration is damaged, but another segment may have it, too.
    undeclared_.push_back({head, segment_, offset, std::string(key)});
    return Status::ok();
  }

  Status on_clear(const RecordHead& head, std::string_view scope,
                  std::string_view key_prefix) override {
    clears_.push_back(clear_of(head, scope, key_prefix));
    if (clears_.back().is_narrow()) narrow_.push_back(clears_.back());
    return Status::ok();
  }

  void on_gap(std::uint64_t) override { is_incomplete_ = true; }
  void pass_over_segment() { is_incomplete_ = true; }
  // Returns whether there may have been records that could not be read.
  bool is_incomplete() const { return is_incomplete_; }

  // Ends a segment.
  Status end() {
    MODCACHE_RETURN_IF_ERROR(batch_.commit());
    const Status status = restore_clears(index_, segment_, clears_);
    clears_.clear();
    return status;
  }

  // Ends the gathering. An entry without a declaration has no scope and could never be cleared, so
  // it is left out.
  Status finish() {
    for (const Found& found : undeclared_) {
      if (contexts_.count(found.head.context) != 0) MODCACHE_RETURN_IF_ERROR(add(found));
    }
    return batch_.commit();
  }

 private:
  struct Found {
    RecordHead head;
    std::uint64_t segment;
    std::uint64_t offset;
    std::string key;
  };

  Status add(const Found& found) {
    return batch_.add(contexts_.at(found.head.context), found.key, found.head, found.segment,
                      found.offset);
  }

  Index& index_;
  RowBatch batch_;
  bool is_incomplete_ = false;
  std::uint64_t segment_ = 0;
  std::unordered_set<Digest128, Digest128Hash> declared_;  // in this segment
  std::vector<Clear>& narrow_;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
  std::vector<Found> undeclared_;
  std::vector<Clear> clears_;
};

// Unreadable records may have replaced or cleared readable ones. Returns the clear that removes all
// entries for which that is possible; sequence 0: none.
Result<Clear> doubtful_entries(const Directory& directory, Index& index, bool is_incomplete) {
  auto control =
      ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kPread, false);
  MODCACHE_ASSIGN_OR_RETURN(auto last_sequence, index.last_sequence());
  if (!control.is_ok() || !control.value()->is_plausible(last_sequence)) return Clear{};
  // If the last records are missing, nobody knows which entries they replaced or cleared.
  const std::uint64_t boot = boot_number(directory.file_system());
  const bool lacks_records = last_sequence < control.value()->surely_committed(boot);
  const Sequence superseded = control.value()->superseded();
  if (superseded == 0 || (!is_incomplete && !lacks_records)) return Clear{};
  return Clear{{}, superseded + 1};
}

// The treatment of segments that cannot be read at the moment, which says nothing about their
// contents.
enum class Unreadable { kFail, kPassOver };

// Adds all segments to `index`. Returns the clear of the entries that were left out, which must be
// recorded; sequence 0: none.
Result<Clear> gather_segments(const Directory& directory, Unreadable unreadable, Index& index) {
  MODCACHE_ASSIGN_OR_RETURN(auto ids, directory.segments());
  std::vector<Clear> narrow;
  Gatherer gatherer(index, narrow);
  for (const std::uint64_t id : ids) {
    // Reads with pread, as a mapped file that shrinks meanwhile would kill the process.
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (reader.status().code() == StatusCode::kIoError && unreadable == Unreadable::kFail) {
      return reader.status();
    }
    if (!reader.is_ok()) {
      // Its creator may have died before writing a header.
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
  MODCACHE_RETURN_IF_ERROR(apply_narrow_clears(index, narrow));
  auto doubtful = doubtful_entries(directory, index, gatherer.is_incomplete());
  if (!doubtful.is_ok() || doubtful.value().sequence == 0) return doubtful;
  MODCACHE_RETURN_IF_ERROR(clear_rows(index, doubtful.value(), [](const auto&) {
                             return Result<SegmentPlan>(SegmentPlan{});
                           }).status());
  return doubtful;
}

// Records the clear, so that a later rebuild leaves out the same entries even if it no longer sees
// that something is missing.
Status record_clear(const Directory& directory, const Clear& clear) {
  if (clear.sequence == 0) return Status::ok();
  SegmentWriter writer(directory, kClearSegmentBytes);
  MODCACHE_RETURN_IF_ERROR(writer.append({tombstone_of(clear)}).status());
  return writer.sync();
}

}  // namespace

Status remove_database(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  // Remove the database first and its log second. A log without a database is removed by whoever
  // makes the next one, but a database without its log would pass for a complete one.
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

Result<std::optional<std::uint64_t>> append_clear_of_dropped(
    Index& index, const ControlPage& control, SegmentWriter& segments, const Context& context,
    std::string_view key, Sequence sequence) {
  MODCACHE_ASSIGN_OR_RETURN(auto replaces, index.replaces(context.digest, key, sequence));
  if (!replaces && !control.bears_last_sequence(sequence)) {
    return std::optional<std::uint64_t>();
  }
  const auto places = segments.append({tombstone_of(clear_of_replaced(context, key, sequence))});
  // kNotFound is the row's alone.
  if (places.is_not_found()) return Status::io_error(places.status().message());
  if (!places.is_ok()) return places.status();
  return std::optional<std::uint64_t>(places.value().front().segment);
}

Result<Sequence> last_sequence_behind(const Directory& directory, Index& index,
                                      bool with_payloads) {
  MODCACHE_ASSIGN_OR_RETURN(auto ids, directory.segments());
  Sequence last = 0;
  for (const std::uint64_t id : ids) {
    MODCACHE_ASSIGN_OR_RETURN(auto offset, index.last_offset(id));
    if (offset == 0) continue;
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (!reader.is_ok()) continue;  // damaged segments tell nothing
    auto found = last_sequence_from(*reader.value(), offset, with_payloads);
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
    MODCACHE_ASSIGN_OR_RETURN(auto index, Index::create(file_system, path));
    // Fail on unreadable segments, as entries that are left out now would stay lost.
    MODCACHE_ASSIGN_OR_RETURN(auto left_out, gather_segments(directory, Unreadable::kFail, *index));
    MODCACHE_RETURN_IF_ERROR(record_clear(directory, left_out));
    auto entries = index->count_entries();
    if (entries.is_ok() && entries.value() > 0) {
      log(LogLevel::kWarning, "rebuilt:" + directory.path(),
          "the database in '" + directory.path() + "' was missing or broken; " +
              std::to_string(entries.value()) + " entries were found again in the segments");
    }
  }
  {
    MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(path, fs::OpenMode::kReadWrite));
    MODCACHE_RETURN_IF_ERROR(file->sync_data());
    // SQLite created it with the umask's permissions; its log and shared memory inherit them.
    (void)file_system.restrict_rights(path);
  }
  MODCACHE_RETURN_IF_ERROR(remove_database(directory));
  MODCACHE_RETURN_IF_ERROR(file_system.rename(path, directory.database_path()));
  return file_system.sync_directory(directory.path());
}

Result<std::unique_ptr<Index>> rebuild_in_memory(const Directory& directory) {
  MODCACHE_ASSIGN_OR_RETURN(auto index, Index::create(directory.file_system(), ""));
  MODCACHE_ASSIGN_OR_RETURN(auto left_out,
                            gather_segments(directory, Unreadable::kPassOver, *index));
  return index;
}

}  // namespace modcache::store
