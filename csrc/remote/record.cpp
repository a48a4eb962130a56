// SPDX-License-Identifier: Apache-2.0
#include "remote/record.h"

#include <algorithm>

#include "base/bytes.h"

namespace modcache::remote {
namespace {

constexpr std::uint32_t kMagic = 0x5252636d;  // "mcRR"
// magic 4, version 1, reserved 3, generation 8 + 8, context 16, run 8, stored at 8, payload 8, key
// 4, header 4
constexpr std::size_t kFixedBytes = 72;
// Payloads begin at a multiple of this, as a CPU's vector instructions like it.
constexpr std::size_t kAlignmentBytes = 16;

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

Result<Record> decode_record(std::string_view bytes, const Seal& seal) {
  if (bytes.size() < kFixedBytes + Seal::kSizeBytes ||
      read_number<std::uint32_t>(bytes.data()) != kMagic) {
    return damaged("there is no entry of modcache");
  }
  if (static_cast<std::uint8_t>(bytes[4]) != kRecordVersion) {
    return Status::unsupported_version("a modcache of another version stored the entry");
  }
  if (!seal.take_off(bytes)) {
    return damaged(seal.has_key() ? "an entry is damaged, or was stored with another key"
                                  : "an entry is damaged, or was stored with a key");
  }
  const char* const fixed = bytes.data();
  Record record;
  record.generation = {read_number<std::uint64_t>(fixed + 8),
                       read_number<std::uint64_t>(fixed + 16)};
  record.context = Digest128::from_bytes(bytes.substr(24, Digest128::kSizeBytes));
  record.run_us = read_number<std::int64_t>(fixed + 40);
  record.stored_at_us = read_number<std::int64_t>(fixed + 48);
  const auto payload_bytes = read_number<std::uint64_t>(fixed + 56);
  const std::size_t key_bytes = read_number<std::uint32_t>(fixed + 64);
  const std::size_t header_bytes = read_number<std::uint32_t>(fixed + 68);
  const std::size_t payload_at = aligned(kFixedBytes + key_bytes + header_bytes);
  if (payload_at > bytes.size() || payload_bytes != bytes.size() - payload_at ||
      record.run_us < 0 || record.run_us > kMostRunUs || record.stored_at_us < 0) {
    return damaged("an entry's sizes do not fit");
  }
  record.key = bytes.substr(kFixedBytes, key_bytes);
  record.header = bytes.substr(kFixedBytes + key_bytes, header_bytes);
  record.payload = bytes.substr(payload_at);
  return record;
}

}  // namespace modcache::remote
