// SPDX-License-Identifier: Apache-2.0
//
// Listing: the contents of a directory or a pack, for tools outside of any model. It only reads: no
// byte of the directory changes, and no writer waits. Commits that happen meanwhile may be seen or
// not. Entries come in pages, each from one state of the database, so that ten million of them need
// the memory of one page, and no log grows behind a slow reader.
//
// A pack has no order of its own: opening one reads it from beginning to end, and takes some 200
// bytes of memory for each entry.
//
// Store answers the calls of models, not this class. Thread-safe.
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
#include "store/index/listed.h"

namespace modcache::store {

class Index;
class PackReader;

class Listing {
 public:
  // kNotFound: no such directory or file. kInvalidArgument: a file that is not a pack.
  // kUnsupportedVersion: it is of another version. When the database is missing or broken, the
  // segments are read from beginning to end.
  static Result<std::unique_ptr<Listing>> open(fs::FileSystem& file_system,
                                               const std::string& directory);
  ~Listing();

  // Returns the contexts that have entries, oldest context first. Reads the whole index.
  Result<std::vector<ListedContext>> contexts();

  // Returns at most `limit` entries of a context in the order of their keys' bytes, beginning with
  // the first whose key is not less than `from_key`. Fewer than `limit` means that there are no
  // more.
  Result<std::vector<ListedEntry>> page(const ListedContext& context, std::string_view from_key,
                                        std::size_t limit);

  // Calls visit(about, text) for each intact note, in no order. Reads all of them.
  Status visit_notes(
      const std::function<void(std::string_view about, std::string_view text)>& visit);

  // Returns the first key of the page after the one that ended with `key`.
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
