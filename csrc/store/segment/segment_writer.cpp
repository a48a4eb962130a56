// SPDX-License-Identifier: Apache-2.0
#include "store/segment/segment_writer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/segment/segment_reader.h"
#include "store/segment/segment_scan.h"

namespace modcache::store {
namespace {

// The most that one write call takes; the heads of its records are kept in memory meanwhile.
constexpr std::uint64_t kWriteSizeBytes = 16 << 20;
// Unsynced files that may wait for sync() before the oldest is synced early.
constexpr std::size_t kMostLeftDirty = 8;
// A segment is read through before it is taken over, which takes milliseconds for this size.
constexpr std::uint64_t kMostAdoptedBytes = 16 << 20;
constexpr char kZeros[kRecordAlignmentBytes] = {};

RecordHead with_sizes(const NewRecord& record) {
  RecordHead head = record.head;
  head.key_size_bytes = static_cast<std::uint32_t>(record.key.size());
  head.header_size_bytes =
      static_cast<std::uint32_t>(record.own_part.size() + record.header.size());
  return head;
}

bool is_named(fs::FileSystem& file_system, const std::string& path, const fs::FileInfo& file) {
  auto named = file_system.info(path);
  return named.is_ok() && named.value().is_same_file(file);
}

}  // namespace

NewRecord declaration_of(const Context& context, Sequence sequence) {
  NewRecord record;
  record.head.kind = RecordKind::kContext;
  record.head.sequence = sequence;
  record.head.context = context.digest;
  record.head.payload_size_bytes = context.description.size();
  record.context = nullptr;
  record.key = context.scope;
  record.payload = context.description.data();
  return record;
}

// Records that are appended to the active segment in one write.
class SegmentWriter::Batch {
 public:
  explicit Batch(Active& active) : active_(active) {}

  // Returns where the record will lie.
  RecordPlace add(const NewRecord& record) {
    RecordHead head = record.head;
    head.payload_checksum = xxh3_64(record.payload, head.payload_size_bytes);
    heads_.push_back(
        encode_record_head(head, record.key, record.header, active_.salt, record.own_part));
    const RecordPlace place{active_.id, active_.tail + size_bytes_};
    add_piece(heads_.back().data(), heads_.back().size());
    add_piece(record.payload, head.payload_size_bytes);
    add_piece(kZeros, align_record(head.payload_size_bytes) - head.payload_size_bytes);
    return place;
  }

  std::uint64_t size_bytes() const { return size_bytes_; }

  Status write() {
    if (pieces_.empty()) return Status::ok();
    const Status status = active_.file->write_at(active_.tail, pieces_);
    active_.is_dirty = true;
    if (status.is_ok()) {
      active_.tail += size_bytes_;
    } else {
      // Without this a rebuild could not tell the incomplete write from damage.
      active_.is_torn = !active_.file->truncate(active_.tail).is_ok();
    }
    size_bytes_ = 0;
    pieces_.clear();
    heads_.clear();
    return status;
  }

 private:
  void add_piece(const void* data, std::uint64_t size_bytes) {
    if (size_bytes > 0) pieces_.push_back({data, size_bytes});
    size_bytes_ += size_bytes;
  }

  Active& active_;
  std::uint64_t size_bytes_ = 0;
  std::vector<fs::Slice> pieces_;
  std::deque<std::string> heads_;  // pieces point into them
};

SegmentWriter::SegmentWriter(const Directory& directory, std::uint64_t segment_limit_bytes)
    : directory_(directory), segment_limit_bytes_(segment_limit_bytes) {}

SegmentWriter::~SegmentWriter() = default;

Result<std::vector<RecordPlace>> SegmentWriter::append(const std::vector<NewRecord>& records) {
  leave_lost_segment();
  auto places = append_all(records);
  // The records that were not written may include declarations.
  if (!places.is_ok()) active_.declared.clear();
  if (active_.is_torn) leave_segment();
  return places;
}

Result<std::vector<RecordPlace>> SegmentWriter::append_all(const std::vector<NewRecord>& records) {
  std::vector<RecordPlace> places;
  places.reserve(records.size());
  Batch batch(active_);
  for (const NewRecord& record : records) {
    std::uint64_t needed = with_sizes(record).record_size_bytes();
    if (record.context != nullptr) {
      needed += with_sizes(declaration_of(*record.context, 0)).record_size_bytes();
    }
    if (!has_room(batch.size_bytes(), needed)) {
      MODCACHE_RETURN_IF_ERROR(batch.write());
      MODCACHE_RETURN_IF_ERROR(make_room(needed));
    }
    if (record.context != nullptr && active_.declared.insert(record.context->digest).second) {
      batch.add(declaration_of(*record.context, record.head.sequence));
    }
    places.push_back(batch.add(record));
    if (batch.size_bytes() >= kWriteSizeBytes) MODCACHE_RETURN_IF_ERROR(batch.write());
  }
  MODCACHE_RETURN_IF_ERROR(batch.write());
  return places;
}

bool SegmentWriter::has_room(std::uint64_t pending_bytes, std::uint64_t needed_bytes) const {
  if (active_.file == nullptr) return false;
  const std::uint64_t filled = active_.tail + pending_bytes;
  // An empty segment takes a record of any size: a larger one gets a segment of its own.
  return filled == kSegmentHeaderSizeBytes || filled + needed_bytes <= segment_limit_bytes_;
}

Status SegmentWriter::make_room(std::uint64_t size_bytes) {
  // Adopting serves processes that store little; one that has filled a segment makes its own.
  const bool is_first = active_.file == nullptr;
  leave_segment();
  if (is_first && size_bytes < segment_limit_bytes_ / 4 && adopt_segment()) return Status::ok();
  return create_segment();
}

// Leaves the segment if somebody removed or replaced its file, as nobody would find what is
// appended.
void SegmentWriter::leave_lost_segment() {
  if (active_.file == nullptr) return;
  auto info = active_.file->info();
  if (!info.is_ok()) return;
  auto named = directory_.file_system().info(directory_.segment_path(active_.id));
  const bool is_lost =
      named.is_ok() ? !named.value().is_same_file(info.value()) : named.is_not_found();
  if (is_lost) leave_segment();
}

void SegmentWriter::leave_segment() {
  if (active_.file != nullptr) left_.push_back({std::move(active_.file), active_.is_dirty});
  active_ = Active{};
}

void SegmentWriter::release_left() {
  for (Left& left : left_) {
    left.file->unlock();
    if (left.is_dirty) left_dirty_.push_back(std::move(left.file));
  }
  left_.clear();
  while (left_dirty_.size() > kMostLeftDirty) {
    // The kernel reports an error of this file only once, so it is kept for sync().
    Status status = left_dirty_.front()->sync_data();
    if (!status.is_ok()) failed_sync_ = std::move(status);
    left_dirty_.erase(left_dirty_.begin());
  }
}

bool SegmentWriter::adopt_segment() {
  auto ids = directory_.segments();
  if (!ids.is_ok()) return false;
  for (const std::uint64_t id : ids.value()) {
    if (adopt(id)) return true;
  }
  return false;
}

bool SegmentWriter::adopt(std::uint64_t id) {
  fs::FileSystem& file_system = directory_.file_system();
  const std::string path = directory_.segment_path(id);
  auto info = file_system.info(path);
  const std::uint64_t fill_limit = std::min(segment_limit_bytes_ / 4 * 3, kMostAdoptedBytes);
  if (!info.is_ok() || info.value().size_bytes > fill_limit) return false;
  auto file = file_system.open(path, fs::OpenMode::kReadWrite);
  if (!file.is_ok()) return false;
  auto is_locked = file.value()->try_lock();
  if (!is_locked.is_ok() || !is_locked.value()) return false;
  // Check it again under the lock: before, its owner could still fill it, or somebody could retire
  // it.
  info = file.value()->info();
  if (!info.is_ok() || !is_named(file_system, path, info.value()) ||
      info.value().size_bytes > fill_limit) {
    return false;
  }
  // A record appended after one that was cut short would lie in the space which that one claims,
  // where a rebuild may skip it.
  auto reader = SegmentReader::open(directory_, id, ReadVia::kPread);
  if (!reader.is_ok()) return false;
  auto is_whole = ends_with_a_record(*reader.value());
  if (!is_whole.is_ok() || !is_whole.value()) return false;
  active_ = Active{std::move(file).value(), id, reader.value()->salt(),
                   align_record(info.value().size_bytes)};
  has_new_name_ = true;  // its creator may have died before the name was synced
  return true;
}

Status SegmentWriter::create_segment() {
  fs::FileSystem& file_system = directory_.file_system();
  constexpr int kTries = 8;
  for (int i = 0; i < kTries; ++i) {
    SegmentHeader header;
    header.salt = random_number();
    header.id = random_number() | 1;  // 0 means none
    header.created_at_us = now_us();
    MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(directory_.segment_path(header.id),
                                                          fs::OpenMode::kCreateExclusive));
    MODCACHE_ASSIGN_OR_RETURN(auto is_locked, file->try_lock());
    auto info = file->info();
    // A clear may have come in between, which treats an unlocked file as abandoned.
    if (!is_locked || !info.is_ok() ||
        !is_named(file_system, directory_.segment_path(header.id), info.value())) {
      continue;
    }
    const std::string bytes = encode_segment_header(header);
    const Status status = file->write_at(0, {{bytes.data(), bytes.size()}});
    if (!status.is_ok()) {
      // Otherwise a full disk would collect an empty file for each batch that it refuses.
      (void)file_system.remove(directory_.segment_path(header.id));
      return status;
    }
    active_ = Active{std::move(file), header.id, header.salt, kSegmentHeaderSizeBytes,
                     /*is_dirty=*/true};
    has_new_name_ = true;
    return Status::ok();
  }
  return Status::busy("no segment could be made in '" + directory_.segments_path() + "'");
}

Status SegmentWriter::sync() {
  Status status = sync_files();
  if (status.is_ok()) return std::exchange(failed_sync_, Status::ok());
  failed_sync_ = Status::ok();
  leave_segment();
  return status;
}

Status SegmentWriter::sync_files() {
  for (Left& left : left_) {
    if (left.is_dirty) MODCACHE_RETURN_IF_ERROR(left.file->sync_data());
    left.is_dirty = false;
  }
  while (!left_dirty_.empty()) {
    MODCACHE_RETURN_IF_ERROR(left_dirty_.back()->sync_data());
    left_dirty_.pop_back();
  }
  if (active_.file != nullptr && active_.is_dirty) {
    MODCACHE_RETURN_IF_ERROR(active_.file->sync_data());
    active_.is_dirty = false;
  }
  if (has_new_name_) {
    MODCACHE_RETURN_IF_ERROR(directory_.file_system().sync_directory(directory_.segments_path()));
    has_new_name_ = false;
  }
  return Status::ok();
}

}  // namespace modcache::store
