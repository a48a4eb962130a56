// SPDX-License-Identifier: Apache-2.0
//
// Record: an entry as it lies on a server, sealed as a whole (FORMAT.md has the bytes). Nothing of
// it is believed before its bounds, its seal, its context and its key were compared.
// Pure functions over memory.
//
// Format version history
//  1: drafts.
//  2: smaller samples of inputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "remote/generation.h"
#include "remote/seal.h"

namespace modcache::remote {

inline constexpr std::uint8_t kRecordVersion = 2;

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
// kUnsupportedVersion: another version of modcache wrote it.
Result<Record> decode_record(std::string_view bytes, const Seal& seal);

}  // namespace modcache::remote
