// SPDX-License-Identifier: Apache-2.0
#include "store/segment/segment_scan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "store/entry/entry_id.h"

namespace modcache::store {
namespace {

constexpr std::size_t kWindowBytes = 256 << 10;
// For a look at the end of a segment, where mostly only one head is left to read.
constexpr std::size_t kSmallWindowBytes = 4 << 10;

// A segment's bytes, which are read in windows.
class Window {
 public:
  Window(const SegmentReader& reader, std::uint64_t end, std::size_t window_bytes = kWindowBytes)
      : reader_(reader), end_(end), window_bytes_(window_bytes) {}

  // Returns the bytes at `offset`; kNotFound when the file ends before.
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

// Returns the record at `offset`, if its head is intact and its payload fits the file. kNotFound:
// the file ends before the record does.
Result<DecodedHead> record_at(Window& window, std::uint64_t offset, std::uint64_t salt) {
  MODCACHE_ASSIGN_OR_RETURN(auto fixed, window.at(offset, kRecordFixedSizeBytes));
  MODCACHE_ASSIGN_OR_RETURN(auto peeked, peek_record_head(fixed));
  MODCACHE_ASSIGN_OR_RETURN(auto bytes, window.at(offset, peeked.head_size_bytes()));
  auto decoded = decode_record_head(bytes, salt);
  if (!decoded.is_ok()) return decoded;
  const RecordHead& head = decoded.value().fixed;
  // The padding of the last record may be missing.
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
  const Status status = reader.read_payload(offset, head, description.data());
  if (status.code() == StatusCode::kIoError) return status;
  // Damaged declarations are skipped, and so are the fillers of gaps, which fail this on purpose.
  if (!status.is_ok()) return Status::ok();
  return visitor.on_context(head, record.key, std::move(description));
}

}  // namespace

Status scan_segment(const SegmentReader& reader, SegmentVisitor& visitor) {
  MODCACHE_ASSIGN_OR_RETURN(auto end, reader.size_bytes());
  Window window(reader, end);
  std::uint64_t offset = kSegmentHeaderSizeBytes;
  std::uint64_t last_begin = 0;  // a record whose end is not confirmed yet; 0: none
  std::uint64_t cut_short = 0;   // the offset of a record that the file may end within; 0: none
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
    // Either the bytes here are damaged, or the previous record was cut short and others were
    // written into the space that it claims. So the search continues within it.
    if (last_begin != 0) offset = last_begin;
    last_begin = 0;
    offset += kRecordAlignmentBytes;
  }
  return Status::ok();
}

Result<std::vector<SegmentGap>> gaps_of(const SegmentReader& reader) {
  MODCACHE_ASSIGN_OR_RETURN(auto end, reader.size_bytes());
  Window window(reader, end);
  std::vector<SegmentGap> gaps;
  std::uint64_t offset = kSegmentHeaderSizeBytes;
  std::uint64_t last_end = offset;  // of the last complete record
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
  MODCACHE_ASSIGN_OR_RETURN(auto end, reader.size_bytes());
  Window window(reader, end);
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
  MODCACHE_ASSIGN_OR_RETURN(auto end, reader.size_bytes());
  Window window(reader, end, kSmallWindowBytes);
  Sequence last = 0;
  while (true) {
    auto record = record_at(window, offset, reader.salt());
    if (record.status().code() == StatusCode::kIoError) return record.status();
    if (!record.is_ok()) return last;
    const RecordHead& head = record.value().fixed;
    // A clear of one entry has the entry's sequence plus one, which was not taken from the page.
    const Sequence least = head.kind == RecordKind::kClear ? 1 : 0;
    if (head.kind != RecordKind::kContext && head.sequence > least) {
      last = std::max(last, head.sequence - least);
    }
    if (with_payloads) {
      std::string payload(head.payload_size_bytes, '\0');
      MODCACHE_RETURN_IF_ERROR(reader.read_payload(offset, head, payload.data()));
    }
    offset += head.record_size_bytes();
  }
}

}  // namespace modcache::store
