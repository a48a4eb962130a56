// SPDX-License-Identifier: Apache-2.0
//
// Record: an entry as it lies on a server, sealed as a whole (FORMAT.md has the bytes). Nothing of
// it is believed before its bounds, its seal, its context and its key were compared.
// Pure functions over memory.
//
// Format version history
//  1: first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "remote/generation.h"
#include "remote/seal.h"

namespace modcache::remote {

inline constexpr std::uint8_t kRecordVersion = 1;

struct Record {
  Generation generation;  // in which it was stored
  Digest128 context;
  std::string_view key;
  std::string_view header;  // opaque here
  std::string_view payload;
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;  // since 1970
};

std::string encode_record(const Record& record, const Seal& seal);

// The views point into `bytes`. kCorruption: damaged, or sealed by somebody without our key;
// kUnsupportedVersion: a newer modcache wrote it.
Result<Record> decode_record(std::string_view bytes, const Seal& seal);

// The first bytes of a record. They are not sealed by themselves, so they tell only whether the
// rest is worth reading or writing.
struct RecordBeginning {
  static constexpr std::size_t kSizeBytes = 72;
  Generation generation;
  Digest128 context;
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;
  std::uint64_t payload_size_bytes = 0;
  std::uint32_t key_size_bytes = 0;
  std::uint32_t header_size_bytes = 0;

  // Whether the record holds such an entry in that generation, stored at that time or later.
  bool is_as_new(const Generation& of_generation, const Digest128& of_context,
                 std::size_t of_key_size_bytes, std::int64_t as_us) const {
    return generation == of_generation && context == of_context &&
           key_size_bytes == of_key_size_bytes && stored_at_us >= as_us;
  }
};
// Nothing: no record that we can read begins so. `bytes` may go on.
std::optional<RecordBeginning> decode_beginning(std::string_view bytes);

// The text that a context stands for, so that entries can be taken from a server to a directory.
struct ContextRecord {
  std::string scope;
  std::string description;
};
std::string encode_context(const ContextRecord& context, const Seal& seal);
// kCorruption: it is none; kUnsupportedVersion: a newer modcache wrote it.
Result<ContextRecord> decode_context(std::string_view bytes, const Seal& seal);

}  // namespace modcache::remote
