// SPDX-License-Identifier: Apache-2.0
#include "store/found_entry.h"

#include <cstring>
#include <string>
#include <utility>

#include "store/record.h"

namespace modcache::store {
namespace {

class QueuedEntry final : public FoundEntry {
 public:
  explicit QueuedEntry(QueuedPutPtr put) : put_(std::move(put)) {}

  const std::string& header() const override { return put_->header; }
  std::size_t payload_size_bytes() const override { return put_->payload.size_bytes; }
  Sequence sequence() const override { return put_->sequence; }
  std::int64_t run_us() const override { return put_->run_us; }
  Status read_payload(void* target) const override {
    const SharedBytes& payload = put_->payload;
    if (payload.size_bytes > 0) std::memcpy(target, payload.data, payload.size_bytes);
    return Status::ok();
  }

 private:
  const QueuedPutPtr put_;
};

class StoredEntry final : public FoundEntry {
 public:
  StoredEntry(std::shared_ptr<SegmentReader> reader, const RecordHead& head, std::uint64_t offset,
              std::string header)
      : reader_(std::move(reader)), head_(head), offset_(offset), header_(std::move(header)) {}

  const std::string& header() const override { return header_; }
  std::size_t payload_size_bytes() const override { return head_.payload_size_bytes; }
  Sequence sequence() const override { return head_.sequence; }
  std::int64_t run_us() const override { return head_.run_us; }
  Status read_payload(void* target) const override {
    MODCACHE_RETURN_IF_ERROR(
        reader_->read(offset_ + head_.payload_offset(), target, head_.payload_size_bytes));
    // The copy is checked, not the file: the bytes there may change between two looks.
    if (xxh3_64(target, head_.payload_size_bytes) != head_.payload_checksum) {
      return Status::corruption("a payload fails its checksum");
    }
    return Status::ok();
  }

 private:
  const std::shared_ptr<SegmentReader> reader_;
  const RecordHead head_;
  const std::uint64_t offset_;
  const std::string header_;
};

}  // namespace

std::unique_ptr<FoundEntry> queued_entry(QueuedPutPtr put) {
  return std::make_unique<QueuedEntry>(std::move(put));
}

Result<std::unique_ptr<FoundEntry>> stored_entry(std::shared_ptr<SegmentReader> reader,
                                                 const Location& location, const EntryId& id) {
  if (location.header_size_bytes > kMaxHeaderSizeBytes) {
    return Status::corruption("the database claims an impossible size");
  }
  std::string bytes(kRecordFixedSizeBytes + id.key.size() + location.header_size_bytes, '\0');
  MODCACHE_RETURN_IF_ERROR(reader->read(location.offset, bytes.data(), bytes.size()));
  auto decoded = decode_record_head(bytes, reader->salt());
  if (!decoded.is_ok()) return decoded.status();
  const RecordHead& head = decoded.value().fixed;
  if (head.kind != RecordKind::kEntry || head.context != id.context.digest ||
      decoded.value().key != id.key || head.sequence != location.sequence ||
      head.payload_size_bytes != location.payload_size_bytes) {
    return Status::corruption("the database leads to the record of another entry");
  }
  return std::unique_ptr<FoundEntry>(std::make_unique<StoredEntry>(
      std::move(reader), head, location.offset, std::string(decoded.value().header)));
}

}  // namespace modcache::store
