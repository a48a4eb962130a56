// SPDX-License-Identifier: Apache-2.0
//
// Verifies a directory: reads and compares everything in it, and trusts nothing. repair_directory()
// repairs what it can.
//
// For the command line and tests, from one thread, also while other processes use the directory:
// their changes do not count as damage. verify_directory() changes nothing, and creates no file.
//
// Damage is whatever costs an entry, a clear or a promise of the store, now or when the database is
// rebuilt. The remains of a process that died are not damage: bytes after the last record, records
// without a row, temporary files. These are counted, or reported with is_damage false.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

struct Finding {
  enum class Kind {
    kEntryBroken,        // a row without an intact record of its own
    kValueRefused,       // an intact record whose value the caller's check refused
    kUnreadable,         // an error of the file system
    kSegmentBroken,      // a file of segments/ that is not the segment of its name
    kDatabaseBroken,     // the file is not a database, or contradicts itself
    kRowsLost,           // intact entries of segments that the database says it knew
    kContextUndeclared,  // entries that a rebuild would lose
    kClearLost,          // entries that a rebuild would bring back
    kControlBroken,      // the control page is missing or damaged
    kLockMissing,        // processes may be writing at the same time
    kNoteBroken,
    // A link, a pipe or the like in the place of a file. No damage where it is a file with other
    // names, or another user's: it is read, and not written.
    kForeignFile,
    kLeftover,  // a temporary file of a process that died; no damage
  };

  Kind kind = Kind::kEntryBroken;
  bool is_damage = true;
  std::string file;  // relative to the directory; empty where it concerns more than one
  std::string what;  // a sentence without its full stop
  // These belong to an entry; a clear has a scope and, as key, its key prefix.
  std::string scope{};
  std::string key{};
  Digest128 context{};
  Sequence sequence = 0;
  std::uint64_t offset = 0;  // of the record in the file
};
// The name for machines: "entry-broken".
std::string_view finding_name(Finding::Kind kind);

// An entry whose record is intact. Borrowed.
struct VerifiedEntry {
  std::string_view scope;
  std::string_view key;
  std::string_view header;
  std::uint64_t payload_size_bytes;
};

struct VerifyProgress {
  std::int64_t entries_done = 0;
  std::int64_t entries = 0;  // approximate
  std::uint64_t bytes_done = 0;
};

struct VerifyOptions {
  std::string directory;
  std::int64_t patience_ms = 5000;
  // Makes the entry a finding when it fails. It checks what the store cannot know: whether the
  // header is valid.
  std::function<Status(const VerifiedEntry&)> check_value;
  std::function<void(const VerifyProgress&)> on_progress;
  // The most findings that the Verification keeps; all are counted.
  std::size_t most_findings = 1000;
};

struct Verification {
  std::int64_t entries = 0;          // named by the database
  std::int64_t whole_entries = 0;    // those with an intact record
  std::int64_t unnamed_records = 0;  // intact or not: replaced, removed, or never committed
  std::int64_t segments = 0;
  std::int64_t clears = 0;
  std::int64_t notes = 0;
  std::uint64_t bytes_read = 0;
  std::map<Finding::Kind, std::int64_t> counts;
  std::int64_t damage = 0;  // findings that are damage
  std::vector<Finding> findings;

  bool is_clean() const { return damage == 0; }
  // Counts the finding, and keeps it while there are fewer than `most_findings`.
  void add(Finding finding, std::size_t most_findings);
};

// kNotFound, kInvalidArgument: not a directory of modcache. kUnsupportedVersion: of another
// version, left alone. kBusy, kIoError: it cannot be read as a whole.
Result<Verification> verify_directory(fs::FileSystem& file_system, const VerifyOptions& options);

struct Repairs {
  Verification before;
  Verification after;
  std::int64_t dropped = 0;        // rows whose record is broken
  std::int64_t recovered = 0;      // entries that the database names again
  bool was_rebuilt = false;        // the database, from the segments
  std::vector<std::string> steps;  // the repairs, as sentences
};

// First renames everything that is not a file to NAME.foreign, in the directory itself: it is
// neither opened nor removed, and its place then counts as a missing file. The folder `segments`
// stays as it is.
//
// Then recreates the database and the control page where they are broken, drops broken entries,
// gives misnamed segments their names back, writes lost clears and declarations again, and removes
// leftovers and files that nobody can read.
//
// Entries that are in segments but not in the database are recovered only when the counts of the
// database or of the control page say that some were lost. The database is then rebuilt from the
// segments by the rule of every rebuild (FORMAT.md): the record is intact, no clear covers it, and
// no record of the key has a greater sequence. An entry that was evicted or dropped and had
// replaced an older one is covered by a clear; other evicted entries may come back with their right
// value.
// Errors: as verify_directory(), and those of writing.
Result<Repairs> repair_directory(fs::FileSystem& file_system, const VerifyOptions& options);

}  // namespace modcache::store
