// SPDX-License-Identifier: Apache-2.0
#include "store/segment/record.h"

#include <array>
#include <cereal/archives/portable_binary.hpp>
#include <cstring>
#include <istream>
#include <ostream>
#include <streambuf>
#include <type_traits>

#include "base/bytes.h"
#include "store/entry/entry_id.h"
#include "store/entry/put.h"

namespace modcache::store {
namespace {

constexpr std::uint32_t kRecordMagic = 0x5243636d;   // "mcCR"
constexpr std::uint32_t kSegmentMagic = 0x4753636d;  // "mcSG"
constexpr std::size_t kRecordChecksumBytes = 8;
// The offsets at which cereal puts four of RecordFields.
constexpr std::size_t kSequenceOffset = 16;
constexpr std::size_t kContextOffset = 24;
constexpr std::size_t kStoredAtOffset = 48;
constexpr std::size_t kKeySizeOffset = 72;
constexpr std::uint64_t kMaxPayloadSizeBytes = std::uint64_t{1} << 46;
// cereal's first byte: 1 for little-endian. With any other value cereal would swap the bytes that
// it reads.
constexpr char kLittleEndianMark = 1;

// cereal writes its mark, then these fields in their order. They are integers of fixed size, so
// that no length from disk decides how much memory is taken.
struct SegmentFields {
  std::uint8_t format_version = kSegmentFormatVersion;
  std::uint16_t reserved = 0;
  std::uint32_t magic = kSegmentMagic;
  std::uint64_t salt = 0;
  std::uint64_t id = 0;
  std::int64_t created_at_us = 0;
  std::array<std::uint64_t, 3> unused{};

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(format_version, reserved, magic, salt, id, created_at_us, unused[0], unused[1],
            unused[2]);
  }
};

struct RecordFields {
  std::uint8_t format_version = kRecordFormatVersion;
  std::uint8_t kind = 0;
  std::uint8_t header_version = 1;
  std::uint32_t magic = kRecordMagic;
  std::uint64_t sequence = 0;
  std::array<std::uint8_t, 16> context{};
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;
  std::uint64_t payload_size_bytes = 0;
  std::uint64_t payload_checksum = 0;
  std::uint32_t key_size_bytes = 0;
  std::uint32_t header_size_bytes = 0;

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(format_version, kind, header_version, magic, sequence,
            cereal::binary_data(context.data(), context.size()), run_us, stored_at_us,
            payload_size_bytes, payload_checksum, key_size_bytes, header_size_bytes);
  }
};

// A stream over borrowed memory, without the copies of std::stringstream.
class MemoryBuffer : public std::streambuf {
 public:
  MemoryBuffer(char* data, std::size_t size_bytes) {
    setp(data, data + size_bytes);
    setg(data, data, data + size_bytes);
  }
};

template <typename Fields>
void write_fields(Fields fields, char* target, std::size_t size_bytes) {
  MemoryBuffer buffer(target, size_bytes);
  std::ostream stream(&buffer);
  cereal::PortableBinaryOutputArchive archive(
      stream, cereal::PortableBinaryOutputArchive::Options::LittleEndian());
  archive(fields);
}

// Returns false when cereal refuses the bytes. It reads exactly `size_bytes`, which are there.
template <typename Fields>
bool read_fields(std::string_view bytes, Fields& fields) {
  if (bytes.front() != kLittleEndianMark) return false;
  try {
    MemoryBuffer buffer(const_cast<char*>(bytes.data()), bytes.size());
    std::istream stream(&buffer);
    cereal::PortableBinaryInputArchive archive(
        stream, cereal::PortableBinaryInputArchive::Options::LittleEndian());
    archive(fields);
    return true;
  } catch (const cereal::Exception&) {
    return false;
  }
}

// Reads the bytes that cereal wrote, but without its streams: a batch whose records are new to the
// process reads hundreds of heads.
RecordFields read_record_fields(const char* record) {
  const char* next = record + kRecordChecksumBytes + sizeof kLittleEndianMark;
  const auto read = [&next](auto& field) {
    field = read_number<std::decay_t<decltype(field)>>(next);
    next += sizeof field;
  };
  RecordFields fields;
  read(fields.format_version);
  read(fields.kind);
  read(fields.header_version);
  read(fields.magic);
  read(fields.sequence);
  std::memcpy(fields.context.data(), next, fields.context.size());
  next += fields.context.size();
  read(fields.run_us);
  read(fields.stored_at_us);
  read(fields.payload_size_bytes);
  read(fields.payload_checksum);
  read(fields.key_size_bytes);
  read(fields.header_size_bytes);
  return fields;
}

std::uint64_t read_checksum(std::string_view bytes) {
  return read_number<std::uint64_t>(bytes.data());
}

std::uint64_t checksum_of_head(std::string_view bytes, std::uint64_t seed) {
  return xxh3_64(bytes.data() + kRecordChecksumBytes, bytes.size() - kRecordChecksumBytes, seed);
}

}  // namespace

std::string encode_segment_header(const SegmentHeader& header) {
  SegmentFields fields;
  fields.salt = header.salt;
  fields.id = header.id;
  fields.created_at_us = header.created_at_us;
  std::string bytes(kSegmentHeaderSizeBytes, '\0');
  write_fields(fields, bytes.data() + kRecordChecksumBytes, bytes.size() - kRecordChecksumBytes);
  write_number(checksum_of_head(bytes, 0), bytes.data());
  return bytes;
}

Result<SegmentHeader> decode_segment_header(std::string_view bytes) {
  if (bytes.size() < kSegmentHeaderSizeBytes) {
    return Status::corruption("a segment is shorter than its header");
  }
  bytes = bytes.substr(0, kSegmentHeaderSizeBytes);
  SegmentFields fields;
  if (!read_fields(bytes.substr(kRecordChecksumBytes), fields) || fields.magic != kSegmentMagic ||
      read_checksum(bytes) != checksum_of_head(bytes, 0)) {
    return Status::corruption("a segment's header is damaged");
  }
  if (fields.format_version != kSegmentFormatVersion) {
    return Status::unsupported_version(
        "a segment has format version " + std::to_string(fields.format_version) +
        ", this modcache reads only version " + std::to_string(kSegmentFormatVersion));
  }
  return SegmentHeader{fields.salt, fields.id, fields.created_at_us};
}

std::string encode_record_head(RecordHead head, std::string_view key, std::string_view header,
                               std::uint64_t salt, std::string_view own_part) {
  head.key_size_bytes = static_cast<std::uint32_t>(key.size());
  head.header_size_bytes = static_cast<std::uint32_t>(own_part.size() + header.size());
  RecordFields fields;
  fields.kind = static_cast<std::uint8_t>(head.kind);
  fields.sequence = head.sequence;
  const std::string digest = head.context.bytes();
  std::memcpy(fields.context.data(), digest.data(), fields.context.size());
  fields.run_us = head.run_us;
  fields.stored_at_us = head.stored_at_us;
  fields.payload_size_bytes = head.payload_size_bytes;
  fields.payload_checksum = head.payload_checksum;
  fields.key_size_bytes = head.key_size_bytes;
  fields.header_size_bytes = head.header_size_bytes;

  std::string bytes(head.payload_offset(), '\0');
  write_fields(fields, bytes.data() + kRecordChecksumBytes,
               kRecordFixedSizeBytes - kRecordChecksumBytes);
  key.copy(bytes.data() + kRecordFixedSizeBytes, key.size());
  char* const header_begins = bytes.data() + kRecordFixedSizeBytes + key.size();
  own_part.copy(header_begins, own_part.size());
  header.copy(header_begins + own_part.size(), header.size());
  const std::string_view covered = std::string_view(bytes).substr(0, head.head_size_bytes());
  write_number(checksum_of_head(covered, salt), bytes.data());
  return bytes;
}

Result<RecordHead> peek_record_head(std::string_view bytes) {
  if (bytes[kRecordChecksumBytes] != kLittleEndianMark) {
    return Status::corruption("no record begins here");
  }
  const RecordFields fields = read_record_fields(bytes.data());
  if (fields.magic != kRecordMagic) return Status::corruption("no record begins here");
  if (fields.format_version != kRecordFormatVersion || fields.header_version != 1) {
    return Status::corruption("a record has an unknown format version");
  }
  if (fields.kind < static_cast<std::uint8_t>(RecordKind::kEntry) ||
      fields.kind > static_cast<std::uint8_t>(RecordKind::kClear)) {
    return Status::corruption("a record is of an unknown kind");
  }
  if (fields.key_size_bytes > kMaxKeySizeBytes || fields.header_size_bytes > kMaxHeaderSizeBytes ||
      fields.payload_size_bytes > kMaxPayloadSizeBytes) {
    return Status::corruption("a record claims an impossible size");
  }
  if (fields.sequence > kMaxSequence) {
    return Status::corruption("a record claims an impossible sequence");
  }
  RecordHead head;
  head.kind = static_cast<RecordKind>(fields.kind);
  head.sequence = fields.sequence;
  head.context = Digest128::from_bytes(
      {reinterpret_cast<const char*>(fields.context.data()), fields.context.size()});
  head.run_us = fields.run_us;
  head.stored_at_us = fields.stored_at_us;
  head.payload_size_bytes = fields.payload_size_bytes;
  head.payload_checksum = fields.payload_checksum;
  head.key_size_bytes = fields.key_size_bytes;
  head.header_size_bytes = fields.header_size_bytes;
  return head;
}

Result<DecodedHead> decode_record_head(std::string_view bytes, std::uint64_t salt) {
  MODCACHE_ASSIGN_OR_RETURN(const auto fixed, peek_record_head(bytes));
  return decode_record_head(fixed, bytes, salt);
}

Result<DecodedHead> decode_record_head(const RecordHead& head, std::string_view bytes,
                                       std::uint64_t salt) {
  if (bytes.size() < head.head_size_bytes()) {
    return Status::corruption("a record's head is cut short");
  }
  bytes = bytes.substr(0, head.head_size_bytes());
  if (read_checksum(bytes) != checksum_of_head(bytes, salt)) {
    return Status::corruption("a record's head fails its checksum");
  }
  const std::string_view rest = bytes.substr(kRecordFixedSizeBytes);
  return DecodedHead{head, rest.substr(0, head.key_size_bytes),
                     rest.substr(head.key_size_bytes, head.header_size_bytes)};
}

std::uint64_t record_sequence(const void* bytes) {
  return read_number<std::uint64_t>(static_cast<const char*>(bytes) + kSequenceOffset);
}

std::int64_t record_stored_at_us(const void* bytes) {
  return read_number<std::int64_t>(static_cast<const char*>(bytes) + kStoredAtOffset);
}

bool is_head_of(const void* bytes, std::uint64_t sequence, std::string_view context,
                std::string_view key) {
  const auto* record = static_cast<const char*>(bytes);
  return record_sequence(record) == sequence &&
         read_number<std::uint32_t>(record + kKeySizeOffset) == key.size() &&
         std::memcmp(record + kContextOffset, context.data(), context.size()) == 0 &&
         std::memcmp(record + kRecordFixedSizeBytes, key.data(), key.size()) == 0;
}

}  // namespace modcache::store
