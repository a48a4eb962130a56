// SPDX-License-Identifier: Apache-2.0
//
// What the tiers hold. The cache does not know what a value is: `tensor` gives it as a Value,
// and reads it back from bytes through a ValueFormat. Values and entries never change, so any
// thread may share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"
#include "cache/context.h"
#include "cache/found_rows.h"
#include "cache/input_sample.h"
#include "cache/place.h"
#include "codec/codec.h"
#include "store/store.h"

namespace modcache::cache {

// A value as bytes: a self-describing header, and what it describes.
struct Written {
  std::string header;
  SharedBytes payload;
};

class Value {
 public:
  virtual ~Value() = default;
  // Memory held while this value lives.
  virtual std::size_t size_bytes() const = 0;
  // The bytes of the numbers alone, as they are stored.
  virtual std::size_t payload_size_bytes() const = 0;
  // Returns the bytes to store. `codec` is a wish: the header says how the payload is encoded.
  virtual Written write(codec::Codec codec) const = 0;
  // Whether a forked child can read it, and let go of it: not what lies in an accelerator's memory.
  virtual bool outlives_fork() const { return true; }
};

class ValueFormat {
 public:
  virtual ~ValueFormat() = default;
  // Entries that were found, read back: one for each of `rows`, which `found` has. The header is
  // as Value::write() gave it. kCorruption when header and payload do not fit, or the payload fails
  // its checksum.
  virtual std::vector<Result<std::shared_ptr<const Value>>> read_all(
      Form form, const FoundRows& found, const std::vector<std::size_t>& rows) const = 0;
  // Does the same for one value that the caller hands out once and keeps no longer than that: its
  // bytes may stay where they lie in the file.
  virtual Result<std::shared_ptr<const Value>> read_once(const FoundRows& found,
                                                         std::size_t row) const {
    return std::move(read_all(Form::kWhole, found, {row}).front());
  }
  // The same value in another memory; as it is where that cannot be had. REQUIRES: this format's.
  virtual std::shared_ptr<const Value> moved(std::shared_ptr<const Value> value,
                                             const Place& place) const = 0;
};

struct Entry {
  std::shared_ptr<const Value> value;
  std::string signature;  // of the input that it was computed from; empty: matches any input
  // How long the run that computed it took. None: no run of ours did, as with cache::store; on disk
  // that reads as 0.
  std::optional<std::int64_t> run_us;
  std::int64_t stored_at_us = now_us();  // since 1970, or kAgeless
  InputSample sample{};                  // of that input; empty: matches any of the signature
};
using EntryPtr = std::shared_ptr<const Entry>;

// Whether it was stored so long ago that it is not found any more; 0: none is too old.
inline bool is_expired(const Entry& entry, std::int64_t max_age_s) {
  return max_age_s > 0 && (now_us() - entry.stored_at_us) / 1'000'000 >= max_age_s;
}

// The facts about an entry that are known without reading its value.
struct EntryInfo {
  bool is_in_memory = false;
  bool is_remote = false;  // only a server has it
  bool matches = true;     // the input that was asked with
  InputSample sample;      // of the input that it was computed from
  std::string signature;   // of the input that it was computed from
  std::int64_t size_bytes = 0;
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;  // since 1970; 0: not known
};

}  // namespace modcache::cache
