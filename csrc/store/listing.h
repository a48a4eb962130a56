// SPDX-License-Identifier: Apache-2.0
//
// Listing: what a directory or a pack holds, for whoever looks at it from outside of any model.
// Reading only: no byte of the directory changes, no writer waits, and what others commit meanwhile
// is seen or not. Entries come in pages, each of one state of the database, so that ten million of
// them need the memory of one page, and no log grows behind a reader that takes its time.
//
// A pack has no order of its own: it is read from beginning to end when it is opened, and takes
// some 200 bytes of memory for each entry.
//
// Not for the path of a call: that is Store. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/store.h"

namespace modcache::store {

// A context that has entries, and what they come to.
struct ListedContext {
  std::int64_t id = 0;  // the database's number
  Context context;
  std::int64_t entries = 0;
  std::int64_t payload_bytes = 0;
  std::int64_t record_bytes = 0;  // with heads and padding, as they lie in the segments
  std::int64_t run_us = 0;
  std::int64_t first_stored_at_us = 0;
  std::int64_t last_stored_at_us = 0;
};

struct ListedEntry {
  std::string key;
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint32_t header_size_bytes = 0;
  std::uint64_t payload_size_bytes = 0;
  Sequence sequence = 0;
  std::int64_t run_us = 0;
  std::int64_t stored_at_us = 0;
};

class Index;
class PackReader;

class Listing {
 public:
  // kNotFound: no such directory or file. kInvalidArgument: a file that is no pack.
  // kUnsupportedVersion: a newer modcache wrote there. Where the
  // database is missing or broken, the segments are read from beginning to end.
  static Result<std::unique_ptr<Listing>> open(fs::FileSystem& file_system,
                                               const std::string& directory,
                                               std::int64_t patience_ms = 5000);
  ~Listing();

  // Those that have entries, oldest context first. Reads the whole index.
  Result<std::vector<ListedContext>> contexts();

  // At most `limit` entries of a context in the order of their keys' bytes, beginning with the
  // first whose key is not less than `from_key`. Fewer than `limit`: there are no more.
  Result<std::vector<ListedEntry>> page(const ListedContext& context, std::string_view from_key,
                                        std::size_t limit);

  // Calls visit(about, text) for each note that is whole, in no order. Reads all of them.
  Status visit_notes(
      const std::function<void(std::string_view about, std::string_view text)>& visit);

  // The page after the one that ended with `key` begins here.
  static std::string key_after(std::string_view key);

 private:
  Listing(fs::FileSystem& file_system, std::string path);
  Status open_pack();

  fs::FileSystem& file_system_;
  const std::string path_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<PackReader> pack_;  // null: a directory
  std::vector<std::uint64_t> notes_of_pack_;
};

}  // namespace modcache::store
