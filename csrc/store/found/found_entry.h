// SPDX-License-Identifier: Apache-2.0
//
// FoundEntry: a single entry that was found, as a batch of one. It stays readable as long as it
// exists, even if the entry is cleared or replaced meanwhile. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/status.h"
#include "store/entry/entry_id.h"
#include "store/entry/own_part.h"
#include "store/found/found_entries.h"

namespace modcache::store {

class FoundEntry {
 public:
  // Returns the entry of a lookup of one key. kNotFound: there is none. Other codes:
  // Store::find_all() failed.
  static Result<std::unique_ptr<FoundEntry>> of_one(FoundEntries found) {
    if (found.has(0)) {
      found.verify_again(0);
      return std::make_unique<FoundEntry>(std::move(found));
    }
    if (!found.failures().empty()) return found.failures().front().status;
    if (!found.index_status().is_ok()) return found.index_status();
    return Status::not_found();
  }

  // REQUIRES: found.has(0).
  explicit FoundEntry(FoundEntries found)
      : found_(std::move(found)), header_(found_.whole_header(0)) {}

  const std::string& header() const { return header_; }
  std::size_t payload_size_bytes() const { return found_.payload_size_bytes(0); }
  Sequence sequence() const { return found_.sequence(0); }
  std::int64_t run_us() const { return found_.run_us(0); }
  std::int64_t stored_at_us() const { return found_.stored_at_us(0); }  // since 1970
  // Fills payload_size_bytes() bytes at `target` and checks their checksum. kCorruption or
  // kIoError: what lies at `target` must not be used.
  Status read_payload(void* target) const { return found_.read(0, target); }

 private:
  const FoundEntries found_;
  const std::string header_;
};

}  // namespace modcache::store
