// SPDX-License-Identifier: Apache-2.0
#include "store/found_entry.h"

#include <cstring>
#include <string>
#include <utility>

namespace modcache::store {
namespace {

// Of a payload up to this size nobody minds having asked for the memory in vain.
constexpr std::uint64_t kAskedForInVainBytes = 1 << 20;

// A head's own checksum says nothing of whether the file is as long as it claims.
Status check_end(const SegmentReader& reader, std::uint64_t offset, const RecordHead& head) {
  if (head.payload_size_bytes <= kAskedForInVainBytes) return Status::ok();
  auto size_bytes = reader.size_bytes();
  if (!size_bytes.is_ok()) return size_bytes.status();
  const std::uint64_t begin = offset + head.payload_offset();
  const bool fits =
      begin <= size_bytes.value() && head.payload_size_bytes <= size_bytes.value() - begin;
  return fits ? Status::ok() : Status::corruption("a record claims more than its file has");
}

class QueuedEntry final : public FoundEntry {
 public:
  explicit QueuedEntry(QueuedPutPtr put)
      : put_(std::move(put)), header_(put_->own_part + *put_->header) {}

  const std::string& header() const override { return header_; }
  std::size_t payload_size_bytes() const override { return put_->payload.size_bytes; }
  Sequence sequence() const override { return put_->sequence; }
  std::int64_t run_us() const override { return put_->run_us; }
  std::int64_t stored_at_us() const override { return put_->stored_at_us; }
  ConfirmationPtr confirmation() const override { return put_->confirmation; }
  Status read_payload(void* target) const override {
    const SharedBytes& payload = put_->payload;
    if (payload.size_bytes > 0) std::memcpy(target, payload.data, payload.size_bytes);
    return Status::ok();
  }

 private:
  const QueuedPutPtr put_;
  const std::string header_;
};

class StoredEntry final : public FoundEntry {
 public:
  explicit StoredEntry(StoredRecord record) : record_(std::move(record)) {}

  const std::string& header() const override { return record_.header; }
  std::size_t payload_size_bytes() const override { return record_.head.payload_size_bytes; }
  Sequence sequence() const override { return record_.head.sequence; }
  std::int64_t run_us() const override { return record_.head.run_us; }
  std::int64_t stored_at_us() const override { return record_.head.stored_at_us; }
  Status read_payload(void* target) const override {
    const RecordHead& head = record_.head;
    MODCACHE_RETURN_IF_ERROR(record_.reader->read(record_.offset + head.payload_offset(), target,
                                                  head.payload_size_bytes));
    // The copy is checked, not the file: the bytes there may change between two looks.
    if (xxh3_64(target, head.payload_size_bytes) != head.payload_checksum) {
      return Status::corruption("a payload fails its checksum");
    }
    return Status::ok();
  }

 private:
  const StoredRecord record_;
};

}  // namespace

std::unique_ptr<FoundEntry> queued_entry(QueuedPutPtr put) {
  return std::make_unique<QueuedEntry>(std::move(put));
}

std::unique_ptr<FoundEntry> stored_entry(StoredRecord record) {
  return std::make_unique<StoredEntry>(std::move(record));
}

Result<std::size_t> entry_head_size_bytes(const Location& location, const EntryId& id) {
  if (location.header_size_bytes > kMaxHeaderSizeBytes) {
    return Status::corruption("the database claims an impossible size");
  }
  return kRecordFixedSizeBytes + id.key.size() + location.header_size_bytes;
}

Result<DecodedHead> decode_entry_head(std::string_view bytes, std::uint64_t salt,
                                      const Location& location, const EntryId& id) {
  auto decoded = decode_record_head(bytes, salt);
  if (!decoded.is_ok()) return decoded.status();
  const RecordHead& head = decoded.value().fixed;
  if (head.kind != RecordKind::kEntry || head.context != id.context.digest ||
      decoded.value().key != id.key || head.sequence != location.sequence ||
      head.payload_size_bytes != location.payload_size_bytes) {
    return Status::corruption("the database leads to the record of another entry");
  }
  return decoded;
}

Result<StoredRecord> read_record(std::shared_ptr<SegmentReader> reader, const Location& location,
                                 const EntryId& id) {
  auto size_bytes = entry_head_size_bytes(location, id);
  if (!size_bytes.is_ok()) return size_bytes.status();
  std::string bytes(size_bytes.value(), '\0');
  MODCACHE_RETURN_IF_ERROR(reader->read(location.offset, bytes.data(), bytes.size()));
  auto decoded = decode_entry_head(bytes, reader->salt(), location, id);
  if (!decoded.is_ok()) return decoded.status();
  MODCACHE_RETURN_IF_ERROR(check_end(*reader, location.offset, decoded.value().fixed));
  return StoredRecord{std::move(reader), location.offset, decoded.value().fixed,
                      std::string(decoded.value().header)};
}

Result<Location> location_in_head(std::string_view bytes, std::uint64_t segment,
                                  std::uint64_t offset, Sequence sequence) {
  auto head = peek_record_head(bytes);
  if (!head.is_ok()) return head.status();
  if (head.value().sequence != sequence) {
    return Status::corruption("the shared index leads to another record");
  }
  return Location{segment,
                  offset,
                  head.value().header_size_bytes,
                  head.value().payload_size_bytes,
                  sequence,
                  head.value().run_us};
}

Result<StoredRecord> read_record_at(std::shared_ptr<SegmentReader> reader, std::uint64_t offset,
                                    Sequence sequence, const EntryId& id) {
  char fixed[kRecordFixedSizeBytes];
  MODCACHE_RETURN_IF_ERROR(reader->read(offset, fixed, sizeof fixed));
  auto location = location_in_head({fixed, sizeof fixed}, reader->id(), offset, sequence);
  if (!location.is_ok()) return location.status();
  return read_record(std::move(reader), location.value(), id);
}

KnownRecord known_record(std::uint64_t segment, const StoredRecord& record,
                         LocationMap& locations) {
  const RecordHead& head = record.head;
  const HeaderParts parts = split_header(record.header);
  return {segment,
          record.offset,
          head.sequence,
          head.run_us,
          head.payload_size_bytes,
          head.payload_checksum,
          locations.intern(parts.shared),
          /*payload_is_verified=*/false,
          static_cast<std::uint8_t>(parts.own_part.size())};
}

Location location_of(const KnownRecord& record) {
  return {record.segment,
          record.offset,
          static_cast<std::uint32_t>(record.own_part_bytes + record.header->size()),
          record.payload_size_bytes,
          record.sequence,
          record.run_us};
}

}  // namespace modcache::store
