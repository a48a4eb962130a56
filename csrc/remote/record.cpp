// SPDX-License-Identifier: Apache-2.0
#include "remote/record.h"

#include <algorithm>

#include "base/little_endian.h"

namespace modcache::remote {
namespace {

constexpr std::uint32_t kMagic = 0x5252636d;         // "mcRR"
constexpr std::uint32_t kContextMagic = 0x4352636d;  // "mcRC"
// magic 4, version 1, reserved 3, generation 8 + 8, context 16, run 8, stored at 8, payload 8, key
// 4, header 4
constexpr std::size_t kFixedBytes = RecordBeginning::kSizeBytes;
// Payloads begin at a multiple of this, as a CPU's vector instructions like it.
constexpr std::size_t kAlignmentBytes = 16;
constexpr std::size_t kContextFixedBytes = 12;  // magic 4, version 1, reserved 3, scope 4

// A longer run counts as one of eleven days, so that sums of them stay within their numbers.
constexpr std::int64_t kMostRunUs = 1'000'000'000'000;

std::size_t aligned(std::size_t size_bytes) {
  return (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

template <typename Number>
void append(std::string& out, Number number) {
  char bytes[sizeof(Number)];
  write_number(number, bytes);
  out.append(bytes, sizeof bytes);
}

Status damaged(const char* what) { return Status::corruption(what); }

}  // namespace

std::string encode_record(const Record& record, const Seal& seal) {
  const std::size_t payload_at = aligned(kFixedBytes + record.key.size() + record.header.size());
  std::string out;
  out.reserve(payload_at + record.payload.size() + Seal::kSizeBytes);
  append(out, kMagic);
  append(out, kRecordVersion);
  out.append(3, '\0');
  append(out, record.generation.of_namespace);
  append(out, record.generation.of_scope);
  out += record.context.bytes();
  append(out, std::min(record.run_us, kMostRunUs));
  append(out, record.stored_at_us);
  append(out, static_cast<std::uint64_t>(record.payload.size()));
  append(out, static_cast<std::uint32_t>(record.key.size()));
  append(out, static_cast<std::uint32_t>(record.header.size()));
  out.append(record.key).append(record.header);
  out.append(payload_at - out.size(), '\0');
  out.append(record.payload);
  seal.put_on(out);
  return out;
}

std::optional<RecordBeginning> decode_beginning(std::string_view bytes) {
  if (bytes.size() < kFixedBytes || read_number<std::uint32_t>(bytes.data()) != kMagic ||
      static_cast<std::uint8_t>(bytes[4]) > kRecordVersion) {
    return std::nullopt;
  }
  const char* const fixed = bytes.data();
  RecordBeginning beginning;
  beginning.generation = {read_number<std::uint64_t>(fixed + 8),
                          read_number<std::uint64_t>(fixed + 16)};
  beginning.context = Digest128::from_bytes(bytes.substr(24, Digest128::kSizeBytes));
  beginning.run_us = read_number<std::int64_t>(fixed + 40);
  beginning.stored_at_us = read_number<std::int64_t>(fixed + 48);
  beginning.payload_size_bytes = read_number<std::uint64_t>(fixed + 56);
  beginning.key_size_bytes = read_number<std::uint32_t>(fixed + 64);
  beginning.header_size_bytes = read_number<std::uint32_t>(fixed + 68);
  return beginning;
}

Result<Record> decode_record(std::string_view bytes, const Seal& seal) {
  if (bytes.size() < kFixedBytes + Seal::kSizeBytes ||
      read_number<std::uint32_t>(bytes.data()) != kMagic) {
    return damaged("there is no entry of modcache");
  }
  if (static_cast<std::uint8_t>(bytes[4]) > kRecordVersion) {
    return Status::unsupported_version("a newer modcache stored the entry");
  }
  if (!seal.take_off(bytes)) {
    return damaged(seal.has_key() ? "an entry is damaged, or was stored with another key"
                                  : "an entry is damaged, or was stored with a key");
  }
  const RecordBeginning beginning = *decode_beginning(bytes.substr(0, kFixedBytes));
  const std::size_t key_bytes = beginning.key_size_bytes;
  const std::size_t header_bytes = beginning.header_size_bytes;
  const std::size_t payload_at = aligned(kFixedBytes + key_bytes + header_bytes);
  if (payload_at > bytes.size() || beginning.payload_size_bytes != bytes.size() - payload_at ||
      beginning.run_us < 0 || beginning.run_us > kMostRunUs || beginning.stored_at_us < 0) {
    return damaged("an entry's sizes do not fit");
  }
  Record record;
  record.generation = beginning.generation;
  record.context = beginning.context;
  record.run_us = beginning.run_us;
  record.stored_at_us = beginning.stored_at_us;
  record.key = bytes.substr(kFixedBytes, key_bytes);
  record.header = bytes.substr(kFixedBytes + key_bytes, header_bytes);
  record.payload = bytes.substr(payload_at);
  return record;
}

std::string encode_context(const ContextRecord& context, const Seal& seal) {
  std::string out;
  append(out, kContextMagic);
  append(out, kRecordVersion);
  out.append(3, '\0');
  append(out, static_cast<std::uint32_t>(context.scope.size()));
  out.append(context.scope).append(context.description);
  seal.put_on(out);
  return out;
}

Result<ContextRecord> decode_context(std::string_view bytes, const Seal& seal) {
  if (bytes.size() < kContextFixedBytes + Seal::kSizeBytes ||
      read_number<std::uint32_t>(bytes.data()) != kContextMagic) {
    return damaged("there is no context of modcache");
  }
  if (static_cast<std::uint8_t>(bytes[4]) > kRecordVersion) {
    return Status::unsupported_version("a newer modcache stored the context");
  }
  if (!seal.take_off(bytes)) return damaged("a context is damaged, or is of another key");
  const std::size_t scope_bytes = read_number<std::uint32_t>(bytes.data() + 8);
  bytes.remove_prefix(kContextFixedBytes);
  if (scope_bytes > bytes.size()) return damaged("a context's sizes do not fit");
  return ContextRecord{std::string(bytes.substr(0, scope_bytes)),
                       std::string(bytes.substr(scope_bytes))};
}

}  // namespace modcache::remote
