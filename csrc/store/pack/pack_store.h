// SPDX-License-Identifier: Apache-2.0
//
// A pack as a Store that is only read: mapped, or by system calls. No lock, no database, and
// nothing is written, beside it or elsewhere; so it works on any file system, for any number of
// processes. Opening costs the same however large it is.
//
// What is put is not kept, which is no failure; clear() and evict() are. No entry is too old. An
// entry that proves broken stays, and is broken again. Where another file takes the pack's place,
// is_attached() says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/directory.h"
#include "store/location_map.h"
#include "store/pack/pack_reader.h"
#include "store/segment/segment_reader.h"
#include "store/store.h"

namespace modcache::store {

// The file that options.directory names; of the other options only `read_via` matters. Failures
// as of PackReader::open().
Result<std::unique_ptr<Store>> open_pack(fs::FileSystem& file_system, const StoreOptions& options);

class PackStore final : public Store {
 public:
  PackStore(fs::FileSystem& file_system, const StoreOptions& options,
            std::unique_ptr<PackReader> pack, const fs::FileInfo& file);

  Result<std::unique_ptr<FoundEntry>> find(const EntryId& id) override;
  FoundEntries find_all(const Context& context, const std::vector<std::string_view>& keys) override;
  bool is_current(const EntryId& id, Sequence sequence) override;
  std::vector<bool> are_current(const Context& context, const std::vector<std::string_view>& keys,
                                const std::vector<Sequence>& sequences) override;
  // Never the same for two packs.
  std::uint64_t removals() const override { return pack_->footer().segment_id | 1; }
  Result<Sequence> put(Put put) override;
  Status put_all(const Context& context, const std::vector<RowPut>& puts,
                 std::vector<Sequence>& sequences) override;
  Status drop(const EntryId& id, Sequence sequence) override;
  Result<std::int64_t> clear(const ClearFilter& filter) override;
  Result<Evicted> evict(std::uint64_t to_bytes) override;
  Status flush() override { return Status::ok(); }
  Result<std::string> find_note(std::string_view about) override;
  Status keep_note(std::string_view about, std::string_view text) override;
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
  SegmentReaders readers_;  // of the one segment that there is
  const std::shared_ptr<LocationMap> locations_ = std::make_shared<LocationMap>();
  mutable std::atomic<bool> is_attached_{true};
  mutable std::atomic<std::int64_t> attached_checked_ms_{0};
};

}  // namespace modcache::store
