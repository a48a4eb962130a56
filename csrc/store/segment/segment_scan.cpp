// SPDX-License-Identifier: Apache-2.0
#include "store/segment/segment_scan.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace modcache::store {
namespace {

constexpr std::size_t kWindowBytes = 256 << 10;
// Of a look at the end alone, where mostly no more than one head is.
constexpr std::size_t kSmallWindowBytes = 4 << 10;

// Bytes of a segment, read in windows.
class Window {
 public:
  Window(const SegmentReader& reader, std::uint64_t end, std::size_t window_bytes = kWindowBytes)
      : reader_(reader), end_(end), window_bytes_(window_bytes) {}

  // The bytes at `offset`; kNotFound when the file ends before.
  Result<std::string_view> at(std::uint64_t offset, std::size_t size_bytes) {
    if (offset > end_ || size_bytes > end_ - offset) return Status::not_found();
    if (offset < begin_ || offset + size_bytes > begin_ + bytes_.size()) {
      const std::uint64_t wanted = std::max(size_bytes, window_bytes_);
      bytes_.resize(std::min(wanted, end_ - offset));
      begin_ = offset;
      const Status status = reader_.read(offset, bytes_.data(), bytes_.size());
      if (!status.is_ok()) {
        bytes_.clear();
        return status;
      }
    }
    return std::string_view(bytes_).substr(offset - begin_, size_bytes);
  }

  std::uint64_t end() const { return end_; }

 private:
  const SegmentReader& reader_;
  const std::uint64_t end_;
  const std::size_t window_bytes_;
  std::uint64_t begin_ = 0;
  std::string bytes_;
};

// The record at `offset`, if there is one whose head is intact and whose payload fits the file.
// kNotFound: the file ends before the record does.
Result<DecodedHead> record_at(Window& window, std::uint64_t offset, std::uint64_t salt) {
  auto fixed = window.at(offset, kRecordFixedSizeBytes);
  if (!fixed.is_ok()) return fixed.status();
  auto peeked = peek_record_head(fixed.value());
  if (!peeked.is_ok()) return peeked.status();
  auto bytes = window.at(offset, peeked.value().head_size_bytes());
  if (!bytes.is_ok()) return bytes.status();
  auto decoded = decode_record_head(bytes.value(), salt);
  if (!decoded.is_ok()) return decoded;
  const RecordHead& head = decoded.value().fixed;
  // The last record's padding may be missing.
  if (offset + head.payload_offset() + head.payload_size_bytes > window.end()) {
    return Status::not_found("a record reaches beyond the end of its segment");
  }
  return decoded;
}

Status visit(const SegmentReader& reader, std::uint64_t offset, const DecodedHead& record,
             SegmentVisitor& visitor) {
  const RecordHead& head = record.fixed;
  switch (head.kind) {
    case RecordKind::kEntry: return visitor.on_entry(head, offset, record.key);
    case RecordKind::kClear: return visitor.on_clear(head, record.header, record.key);
    case RecordKind::kContext: break;
  }
  std::string description(head.payload_size_bytes, '\0');
  const Status status =
      reader.read(offset + head.payload_offset(), description.data(), description.size());
  if (status.code() == StatusCode::kIoError) return status;
  if (!status.is_ok() || xxh3_64(description.data(), description.size()) != head.payload_checksum) {
    return Status::ok();
  }
  return visitor.on_context(head, record.key, std::move(description));
}

}  // namespace

Status scan_segment(const SegmentReader& reader, SegmentVisitor& visitor) {
  auto end = reader.size_bytes();
  if (!end.is_ok()) return end.status();
  Window window(reader, end.value());
  std::uint64_t offset = kSegmentHeaderSizeBytes;
  std::uint64_t last_begin = 0;  // of a record whose end is not confirmed yet; 0: none
  std::uint64_t cut_short = 0;   // where the file may end within a record; 0: nowhere
  while (offset < window.end()) {
    auto record = record_at(window, offset, reader.salt());
    if (record.is_ok()) {
      if (cut_short != 0) visitor.on_gap(cut_short);
      cut_short = 0;
      MODCACHE_RETURN_IF_ERROR(visit(reader, offset, record.value(), visitor));
      last_begin = offset;
      offset += record.value().fixed.record_size_bytes();
      continue;
    }
    if (record.status().code() == StatusCode::kIoError) return record.status();
    if (cut_short == 0 && record.status().is_not_found()) {
      cut_short = offset;
    } else if (cut_short == 0) {
      visitor.on_gap(offset);
    }
    // Either the bytes here are damaged, or the record before was cut short and others were
    // written into the space that it claims.
    if (last_begin != 0) offset = last_begin;
    last_begin = 0;
    offset += kRecordAlignmentBytes;
  }
  return Status::ok();
}

Result<std::vector<SegmentGap>> gaps_of(const SegmentReader& reader) {
  auto end = reader.size_bytes();
  if (!end.is_ok()) return end.status();
  Window window(reader, end.value());
  std::vector<SegmentGap> gaps;
  std::uint64_t offset = kSegmentHeaderSizeBytes;
  std::uint64_t last_end = offset;  // of what is whole
  while (offset < window.end()) {
    auto record = record_at(window, offset, reader.salt());
    if (record.status().code() == StatusCode::kIoError) return record.status();
    if (!record.is_ok()) {
      offset += kRecordAlignmentBytes;
      continue;
    }
    if (offset > last_end) gaps.push_back({last_end, offset});
    offset += record.value().fixed.record_size_bytes();
    last_end = offset;
  }
  if (last_end < window.end()) gaps.push_back({last_end, window.end()});
  return gaps;
}

Result<bool> ends_with_a_record(const SegmentReader& reader) {
  auto end = reader.size_bytes();
  if (!end.is_ok()) return end.status();
  Window window(reader, end.value());
  std::uint64_t offset = kSegmentHeaderSizeBytes;
  while (offset < window.end()) {
    auto record = record_at(window, offset, reader.salt());
    if (record.status().code() == StatusCode::kIoError) return record.status();
    if (!record.is_ok()) return false;
    offset += record.value().fixed.record_size_bytes();
  }
  return true;
}

Result<Sequence> last_sequence_from(const SegmentReader& reader, std::uint64_t offset,
                                    bool with_payloads) {
  auto end = reader.size_bytes();
  if (!end.is_ok()) return end.status();
  Window window(reader, end.value(), kSmallWindowBytes);
  Sequence last = 0;
  while (true) {
    auto record = record_at(window, offset, reader.salt());
    if (record.status().code() == StatusCode::kIoError) return record.status();
    if (!record.is_ok()) return last;
    const RecordHead& head = record.value().fixed;
    // A clear of one entry has the number after the entry's, which nobody was given.
    const Sequence least = head.kind == RecordKind::kClear ? 1 : 0;
    if (head.kind != RecordKind::kContext && head.sequence > least) {
      last = std::max(last, head.sequence - least);
    }
    if (with_payloads) {
      std::string payload(head.payload_size_bytes, '\0');
      MODCACHE_RETURN_IF_ERROR(
          reader.read(offset + head.payload_offset(), payload.data(), payload.size()));
      if (xxh3_64(payload.data(), payload.size()) != head.payload_checksum) {
        return Status::corruption("a payload fails its checksum");
      }
    }
    offset += head.record_size_bytes();
  }
}

}  // namespace modcache::store
