// SPDX-License-Identifier: Apache-2.0
//
// AttachedDirectory: a directory that is open, and whether it still is the one that was opened. It
// owns what all parts of a store share: the files that are open, the shared index and the readers
// of segments. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "fs/file_system.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/entry/options.h"
#include "store/entry/removals.h"
#include "store/index/index.h"
#include "store/recovery/open_directory.h"
#include "store/segment/segment_reader.h"
#include "store/shared_index/shared_index.h"

namespace modcache::store {

class AttachedDirectory {
 public:
  // `opened` is what open_directory() gave for the other two.
  AttachedDirectory(const Directory& directory, StoreOptions options, OpenedDirectory opened);
  AttachedDirectory(const AttachedDirectory&) = delete;
  AttachedDirectory& operator=(const AttachedDirectory&) = delete;

  const StoreOptions& options() const { return options_; }
  const Directory& directory() const { return directory_; }
  bool is_read_only() const { return opened_.writer == nullptr; }
  // kIoError: the directory can only be read, or was replaced.
  Status check_writable() const;

  // The connection for lookups.
  Index& reader() { return *opened_.reader; }
  SharedIndex& index() { return index_; }
  SegmentReaders& readers() { return readers_; }
  // REQUIRES, of these three: the directory is not only read.
  Index& writer() { return *opened_.writer; }
  ControlPage& control() { return *opened_.control; }
  fs::File& lock_file() { return *opened_.lock_file; }

  // See Store::removals().
  std::uint64_t removals() const {
    return opened_.control == nullptr ? uncounted_removals_ : opened_.control->removals();
  }
  // The same, but 0 where removals are not counted: nothing may be remembered then.
  std::uint64_t counted_removals() const {
    return opened_.control == nullptr ? 0 : opened_.control->removals();
  }

  // See Store::now().
  Moment now() const;

  // See Store::is_attached().
  bool is_attached() const { return is_read_only() ? check_attached() : !is_known_detached(); }
  // Looks at the files, unless somebody did within the last 100 ms.
  bool check_attached() const;
  // The next check looks at the files, however recent the last look was.
  void look_again() const { checked_ms_.store(0, std::memory_order_relaxed); }
  void detach() { is_attached_.store(false, std::memory_order_relaxed); }

  // Closes segments that were emptied since the last call: their space comes back once nobody has
  // them open. It costs two atomic loads where there are none.
  void forget_retired();

  // Entries that were stored before this time are too old; the smallest number where no entry is.
  std::int64_t expired_before_us() const;

 private:
  bool is_known_detached() const;

  const StoreOptions options_;
  const Directory directory_;
  const OpenedDirectory opened_;
  SharedIndex index_;
  SegmentReaders readers_;
  const std::uint64_t uncounted_removals_;
  fs::FileInfo given_;  // the directory, by the path that the options name
  mutable std::atomic<bool> is_attached_{true};
  mutable std::atomic<std::int64_t> checked_ms_{0};
  std::atomic<std::uint64_t> seen_reclaims_{0};
};

}  // namespace modcache::store
