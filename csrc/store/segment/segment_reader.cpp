// SPDX-License-Identifier: Apache-2.0
#include "store/segment/segment_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace modcache::store {
namespace {

constexpr std::uint64_t kLeastMappingBytes = 1 << 20;

}  // namespace

Result<std::shared_ptr<SegmentReader>> SegmentReader::open(const Directory& directory,
                                                           std::uint64_t id, ReadVia read_via) {
  const std::string path = directory.segment_path(id);
  auto file = directory.file_system().open(path, fs::OpenMode::kRead);
  if (!file.is_ok()) return file.status();
  // Where there are no holds it goes without.
  auto is_held = file.value()->try_hold(fs::File::Hold::kShared);
  const bool is_being_unlinked = is_held.is_ok() && !is_held.value();
  auto info = file.value()->info();
  if (!info.is_ok()) return info.status();
  if (is_being_unlinked || info.value().link_count == 0) {
    return Status::not_found("'" + path + "' is gone");
  }
  char bytes[kSegmentHeaderSizeBytes];
  auto count = file.value()->read_at(0, bytes, sizeof bytes);
  if (!count.is_ok()) return count.status();
  auto header = decode_segment_header({bytes, count.value()});
  if (!header.is_ok()) return header.status();
  if (header.value().id != id) {
    return Status::corruption("'" + path + "' holds another segment than its name says");
  }
  return std::shared_ptr<SegmentReader>(
      new SegmentReader(std::move(file).value(), header.value(), read_via));
}

Result<std::shared_ptr<SegmentReader>> SegmentReader::open_sealed(fs::FileSystem& file_system,
                                                                  const std::string& path,
                                                                  ReadVia read_via) {
  auto file = file_system.open(path, fs::OpenMode::kReadFollowing);
  if (!file.is_ok()) return file.status();
  std::string bytes(kSegmentHeaderSizeBytes, '\0');
  auto count = file.value()->read_at(0, bytes.data(), bytes.size());
  if (!count.is_ok()) return count.status();
  auto header = decode_segment_header(std::string_view(bytes).substr(0, count.value()));
  if (!header.is_ok()) return header.status();
  return std::shared_ptr<SegmentReader>(
      new SegmentReader(std::move(file).value(), header.value(), read_via));
}

SegmentReader::SegmentReader(std::unique_ptr<fs::File> file, const SegmentHeader& header,
                             ReadVia read_via)
    : file_(std::move(file)), header_(header), read_via_(read_via) {}

Result<std::uint64_t> SegmentReader::size_bytes() const {
  auto info = file_->info();
  if (!info.is_ok()) return info.status();
  return info.value().size_bytes;
}

Result<std::shared_ptr<fs::Mapping>> SegmentReader::mapping_up_to(
    std::uint64_t end, std::uint64_t file_size_bytes) const {
  MutexLock lock(mutex_);
  if (mapping_ == nullptr || mapping_->size_bytes() < end) {
    // Twice the file, so that one which grows is not mapped anew for each of its entries.
    const std::uint64_t size = std::max(kLeastMappingBytes, 2 * file_size_bytes);
    auto mapping = file_->map(size, false);
    if (!mapping.is_ok()) return mapping.status();
    mapping_ = std::move(mapping).value();
  }
  return mapping_;
}

Result<SegmentReader::View> SegmentReader::view() const {
  auto file_size_bytes = this->size_bytes();
  if (!file_size_bytes.is_ok()) return file_size_bytes.status();
  View view{nullptr, file_size_bytes.value()};
  if (read_via_ == ReadVia::kPread) return view;
  auto mapping = mapping_up_to(view.size_bytes, view.size_bytes);
  if (!mapping.is_ok()) return mapping.status();
  view.mapping = std::move(mapping).value();
  return view;
}

Status SegmentReader::read(std::uint64_t offset, void* target, std::size_t size_bytes) const {
  const std::uint64_t end = offset + size_bytes;
  const Status cut_short = Status::corruption("'" + file_->path() + "' was cut short");
  if (end < offset) return cut_short;
  if (read_via_ == ReadVia::kPread) {
    auto count = file_->read_at(offset, target, size_bytes);
    if (!count.is_ok()) return count.status();
    return count.value() == size_bytes ? Status::ok() : cut_short;
  }
  // Asked each time: a page beyond the end of a file that was cut short kills the process.
  auto file_size_bytes = this->size_bytes();
  if (!file_size_bytes.is_ok()) return file_size_bytes.status();
  if (end > file_size_bytes.value()) return cut_short;
  auto mapping = mapping_up_to(end, file_size_bytes.value());
  if (!mapping.is_ok()) return mapping.status();
  if (size_bytes > 0) std::memcpy(target, mapping.value()->data() + offset, size_bytes);
  return Status::ok();
}

SegmentReaders::SegmentReaders(const Directory& directory, ReadVia read_via)
    : directory_(directory), read_via_(read_via) {}

Result<std::shared_ptr<SegmentReader>> SegmentReaders::get(std::uint64_t id) {
  MutexLock lock(mutex_);
  const auto known = readers_.find(id);
  if (known != readers_.end()) return known->second;
  auto opened = SegmentReader::open(directory_, id, read_via_);
  if (!opened.is_ok()) return opened.status();
  if (readers_.size() >= kMostReaders) readers_.erase(readers_.begin());
  readers_.emplace(id, opened.value());
  return opened;
}

void SegmentReaders::forget_gone() {
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
