// SPDX-License-Identifier: Apache-2.0
#include "store/segment/segment_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/entry/options.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kLeastMappingBytes = 1 << 20;

}  // namespace

Result<SegmentHeader> read_segment_header(const fs::File& file) {
  char bytes[kSegmentHeaderSizeBytes];
  MODCACHE_ASSIGN_OR_RETURN(auto count, file.read_at(0, bytes, sizeof bytes));
  return decode_segment_header({bytes, count});
}

Result<std::shared_ptr<SegmentReader>> SegmentReader::open(const Directory& directory,
                                                           std::uint64_t id, ReadVia read_via) {
  const std::string path = directory.segment_path(id);
  MODCACHE_ASSIGN_OR_RETURN(auto file, directory.file_system().open(path, fs::OpenMode::kRead));
  // Where the file system has no holds, the segment is read without one.
  auto is_held = file->try_hold(fs::File::Hold::kShared);
  const bool is_being_unlinked = is_held.is_ok() && !is_held.value();
  MODCACHE_ASSIGN_OR_RETURN(auto info, file->info());
  if (is_being_unlinked || info.link_count == 0) {
    return Status::not_found("'" + path + "' is gone");
  }
  MODCACHE_ASSIGN_OR_RETURN(auto header, read_segment_header(*file));
  if (header.id != id) {
    return Status::corruption("'" + path + "' holds another segment than its name says");
  }
  return std::shared_ptr<SegmentReader>(new SegmentReader(std::move(file), header, read_via));
}

Result<std::shared_ptr<SegmentReader>> SegmentReader::open_sealed(fs::FileSystem& file_system,
                                                                  const std::string& path,
                                                                  ReadVia read_via) {
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(path, fs::OpenMode::kReadFollowing));
  MODCACHE_ASSIGN_OR_RETURN(auto header, read_segment_header(*file));
  return std::shared_ptr<SegmentReader>(new SegmentReader(std::move(file), header, read_via));
}

SegmentReader::SegmentReader(std::unique_ptr<fs::File> file, const SegmentHeader& header,
                             ReadVia read_via)
    : file_(std::move(file)), header_(header), read_via_(read_via) {}

Result<std::uint64_t> SegmentReader::size_bytes() const {
  MODCACHE_ASSIGN_OR_RETURN(auto info, file_->info());
  return info.size_bytes;
}

Result<std::shared_ptr<fs::Mapping>> SegmentReader::mapping_up_to(
    std::uint64_t end, std::uint64_t file_size_bytes) const {
  MutexLock lock(mutex_);
  if (mapping_ == nullptr || mapping_->size_bytes() < end) {
    // Maps twice the file's size, so that a growing file is not mapped anew for each of its
    // entries.
    const std::uint64_t size = std::max(kLeastMappingBytes, 2 * file_size_bytes);
    MODCACHE_ASSIGN_OR_RETURN(mapping_, file_->map(size, false));
  }
  return mapping_;
}

Result<SegmentReader::View> SegmentReader::view() const {
  MODCACHE_ASSIGN_OR_RETURN(auto file_size_bytes, this->size_bytes());
  View view{nullptr, file_size_bytes};
  if (read_via_ == ReadVia::kPread) return view;
  MODCACHE_ASSIGN_OR_RETURN(view.mapping, mapping_up_to(view.size_bytes, view.size_bytes));
  return view;
}

Status SegmentReader::read(std::uint64_t offset, void* target, std::size_t size_bytes) const {
  const std::uint64_t end = offset + size_bytes;
  const Status cut_short = Status::corruption("'" + file_->path() + "' was cut short");
  if (end < offset) return cut_short;
  if (read_via_ == ReadVia::kPread) {
    MODCACHE_ASSIGN_OR_RETURN(auto count, file_->read_at(offset, target, size_bytes));
    return count == size_bytes ? Status::ok() : cut_short;
  }
  // Checks the size each time: touching a page beyond the end of a file that was cut short kills
  // the process.
  MODCACHE_ASSIGN_OR_RETURN(auto file_size_bytes, this->size_bytes());
  if (end > file_size_bytes) return cut_short;
  MODCACHE_ASSIGN_OR_RETURN(auto mapping, mapping_up_to(end, file_size_bytes));
  if (size_bytes > 0) std::memcpy(target, mapping->data() + offset, size_bytes);
  return Status::ok();
}

std::shared_ptr<fs::Mapping> SegmentReader::map_copy(std::uint64_t offset,
                                                     std::size_t size_bytes) const {
  if (read_via_ == ReadVia::kPread || size_bytes == 0) return nullptr;
  auto mapping = file_->map_copy(offset, size_bytes);
  return mapping.is_ok() ? std::move(mapping).value() : nullptr;
}

Result<SegmentReader::Record> SegmentReader::read_record(std::uint64_t offset) const {
  std::string bytes(kRecordFixedSizeBytes, '\0');
  MODCACHE_RETURN_IF_ERROR(read(offset, bytes.data(), bytes.size()));
  MODCACHE_ASSIGN_OR_RETURN(auto peeked, peek_record_head(bytes));
  bytes.resize(peeked.head_size_bytes());
  MODCACHE_RETURN_IF_ERROR(read(offset, bytes.data(), bytes.size()));
  MODCACHE_ASSIGN_OR_RETURN(auto decoded, decode_record_head(bytes, salt()));
  return Record{decoded.fixed, std::string(decoded.key), std::string(decoded.header)};
}

Status SegmentReader::read_payload(std::uint64_t offset, const RecordHead& head,
                                   void* target) const {
  MODCACHE_RETURN_IF_ERROR(read(offset + head.payload_offset(), target, head.payload_size_bytes));
  // Checks the copy and not the file, whose bytes may change between two looks.
  if (xxh3_64(target, head.payload_size_bytes) != head.payload_checksum) {
    return Status::corruption("a payload fails its checksum");
  }
  return Status::ok();
}

SegmentReaders::SegmentReaders(const Directory& directory, ReadVia read_via)
    : directory_(directory), read_via_(read_via) {}

Result<std::shared_ptr<SegmentReader>> SegmentReaders::get(std::uint64_t id) {
  MutexLock lock(mutex_);
  const auto known = readers_.find(id);
  if (known != readers_.end()) return known->second;
  MODCACHE_ASSIGN_OR_RETURN(auto opened, SegmentReader::open(directory_, id, read_via_));
  if (readers_.size() >= kMostReaders) readers_.erase(readers_.begin());
  readers_.emplace(id, opened);
  return opened;
}

void SegmentReaders::forget_retired() {
  MutexLock lock(mutex_);
  for (auto entry = readers_.begin(); entry != readers_.end();) {
    const bool is_gone =
        directory_.file_system().info(directory_.segment_path(entry->first)).is_not_found();
    entry = is_gone ? readers_.erase(entry) : std::next(entry);
  }
}

void SegmentReaders::add(std::shared_ptr<SegmentReader> reader) {
  MutexLock lock(mutex_);
  const std::uint64_t id = reader->id();
  readers_[id] = std::move(reader);
}

}  // namespace modcache::store
