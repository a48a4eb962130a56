// SPDX-License-Identifier: Apache-2.0
//
// PackStore: a pack as a read-only Store, mapped or read by system calls. It takes no lock, has no
// database and writes nothing anywhere, so it works on any file system and for any number of
// processes. Opening costs the same for every size.
//
// put() stores nothing, which is not an error; clear() and evict() are errors. No entry is ever too
// old. An entry that proves broken stays, and is broken again the next time. is_attached() tells
// when another file has replaced the pack.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/entry/totals.h"
#include "store/found/location_map.h"
#include "store/pack/pack_reader.h"
#include "store/segment/segment_reader.h"
#include "store/store.h"

namespace modcache::store {

// Opens the file that options.directory names; of the other options only `read_via` matters. Errors
// are those of PackReader::open().
Result<std::unique_ptr<Store>> open_pack(fs::FileSystem& file_system, const StoreOptions& options);

class PackStore final : public Store {
 public:
  PackStore(fs::FileSystem& file_system, const StoreOptions& options,
            std::unique_ptr<PackReader> pack, const fs::FileInfo& file);

  FoundEntries find_all(const EntryIds& ids) override;
  std::vector<Sequence> sequences(const EntryIds& ids) override;
  std::vector<bool> are_current(const EntryIds& ids,
                                const std::vector<Sequence>& sequences) override;
  Moment now() const override { return {removals() >> kSourceShift, 0, 0}; }
  bool was_cleared_since(const Moment& moment, const EntryId&) override {
    return moment.source != removals() >> kSourceShift;
  }
  std::uint64_t removals() const override { return pack_->footer().segment_id | 1; }
  Status put_all(const Context& context, std::span<const Digest128> addresses,
                 const std::vector<RowPut>& puts, std::vector<Sequence>& sequences) override;
  Status drop(const EntryId&, Sequence) override { return Status::ok(); }
  Result<std::int64_t> clear(const ClearFilter& filter) override;
  Result<Evicted> evict(std::uint64_t to_bytes) override;
  Status flush() override { return Status::ok(); }
  Result<std::string> find_note(std::string_view about) override;
  Status keep_note(std::string_view, std::string_view) override { return Status::ok(); }
  Status clear_notes() override { return Status::ok(); }
  Result<Totals> totals() override;
  bool is_read_only() const override { return true; }
  bool has_ageing_entries() const override { return false; }
  bool is_attached() const override;

 private:
  Status never_changed() const;

  fs::FileSystem& file_system_;
  const std::string path_;
  const std::unique_ptr<PackReader> pack_;
  const fs::FileInfo file_;
  const Directory no_directory_;
  SegmentReaders readers_;  // of the only segment
  const std::shared_ptr<LocationMap> locations_ = std::make_shared<LocationMap>();
  mutable std::atomic<bool> is_attached_{true};
  mutable std::atomic<std::int64_t> attached_checked_ms_{0};
};

}  // namespace modcache::store
