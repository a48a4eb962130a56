// SPDX-License-Identifier: Apache-2.0
//
// PackWriter: writes a pack as FILE.new, locked, and renames it to FILE when it is complete. Not
// thread-safe. A writer that is destroyed before finish() leaves nothing behind.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"
#include "store/pack/pack_format.h"
#include "store/segment/record.h"

namespace modcache::store {

class PackWriter {
 public:
  // kBusy: another process is writing the same pack.
  static Result<std::unique_ptr<PackWriter>> create(fs::FileSystem& file_system,
                                                    const std::string& path);
  ~PackWriter();
  PackWriter(const PackWriter&) = delete;
  PackWriter& operator=(const PackWriter&) = delete;

  // Takes the times and the payload's checksum from `head`. A key of a context must not be added
  // twice.
  Status add_entry(const Context& context, std::string_view key, std::string_view header,
                   std::string_view payload, const RecordHead& head);
  Status add_note(std::string_view about, std::string_view text);

  Status finish();

 private:
  // A future slot of the table.
  struct Placed {
    Digest128 address;
    std::uint64_t offset = 0;
  };

  PackWriter(fs::FileSystem& file_system, std::string path, std::unique_ptr<fs::File> file);
  Status begin();
  Status declare(const Context& context);
  Status append(RecordHead head, std::string_view key, std::string_view header,
                std::string_view payload);
  Status write_table();
  Status write(std::string_view bytes);
  Status pad_to(std::uint64_t alignment);
  Status write_out();

  fs::FileSystem& file_system_;
  const std::string path_;
  std::unique_ptr<fs::File> file_;
  SegmentHeader header_;
  PackFooter footer_;
  Sequence next_sequence_ = 0;
  std::vector<Placed> placed_;
  std::unordered_set<Digest128, Digest128Hash> declared_;
  std::string buffer_;
  std::uint64_t written_bytes_ = 0;
  bool is_finished_ = false;
};

}  // namespace modcache::store
