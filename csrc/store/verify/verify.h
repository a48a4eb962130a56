// SPDX-License-Identifier: Apache-2.0
//
// Verifying a directory: everything in it is read and compared, nothing is believed.
// mend_directory() repairs what it can.
//
// Who may call them: the command line and tests, from one thread, also while other processes use
// the directory: what they change meanwhile is no damage. verify_directory() changes nothing, and
// makes no file.
//
// What is damage: whatever costs an entry, a clear or a promise of the store, now or when the
// database is made anew. What a process leaves that died is not: bytes behind the last record,
// records without a row, files in the making. These are counted, or found with is_damage false.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/store.h"

namespace modcache::store {

struct Finding {
  enum class Kind {
    kEntryBroken,        // a row without a whole record of its own
    kValueRefused,       // a whole record whose value the caller's check refused
    kUnreadable,         // the file system said no
    kSegmentBroken,      // a file of segments/ that is no segment, or another than its name says
    kDatabaseBroken,     // the database is none, or contradicts itself
    kRowsLost,           // whole entries in segments, of which the database says that it knew them
    kContextUndeclared,  // entries that making the database anew would lose
    kClearLost,          // entries that making the database anew would bring back
    kControlBroken,      // the control page is gone, or none
    kLockMissing,        // processes may be writing at the same time
    kNoteBroken,
    kForeignFile,  // a link, a pipe or the like in the place of a file. No damage where it is a
                   // file with other names, or another user's: it is read, and not written
    kLeftover,     // in the making, by a process that died; no damage
  };

  Kind kind = Kind::kEntryBroken;
  bool is_damage = true;
  std::string file;  // below the directory; empty where it is about more than one
  std::string what;  // a sentence without its point
  // Of an entry; also scope and key prefix of a clear.
  std::string scope;
  std::string key;
  Digest128 context;
  Sequence sequence = 0;
  std::uint64_t offset = 0;  // of the record in the file
};
// As machines are told: "entry-broken".
std::string_view finding_name(Finding::Kind kind);

// An entry whose record is whole. Borrowed.
struct VerifiedEntry {
  std::string_view scope;
  std::string_view key;
  std::string_view header;
  std::uint64_t payload_size_bytes;
};

struct VerifyProgress {
  std::int64_t entries_done = 0;
  std::int64_t entries = 0;  // about
  std::uint64_t bytes_done = 0;
};

struct VerifyOptions {
  std::string directory;
  std::int64_t patience_ms = 5000;
  // A failure makes the entry a finding. What the store cannot know: whether the header is one.
  std::function<Status(const VerifiedEntry&)> check_value;
  std::function<void(const VerifyProgress&)> on_progress;
  // Findings kept in the Verification; all are counted.
  std::size_t most_findings = 1000;
};

struct Verification {
  std::int64_t entries = 0;          // that the database names
  std::int64_t whole_entries = 0;    // of them
  std::int64_t unnamed_records = 0;  // whole or not: replaced, removed, or never committed
  std::int64_t segments = 0;
  std::int64_t clears = 0;
  std::int64_t notes = 0;
  std::uint64_t bytes_read = 0;
  std::map<Finding::Kind, std::int64_t> counts;
  std::int64_t damage = 0;  // findings that are damage
  std::vector<Finding> findings;

  bool is_clean() const { return damage == 0; }
};

// kNotFound, kInvalidArgument: no directory of modcache. kUnsupportedVersion: of a newer modcache,
// left alone. kBusy, kIoError: it cannot be read as a whole.
Result<Verification> verify_directory(fs::FileSystem& file_system, const VerifyOptions& options);

struct Mending {
  Verification before;
  Verification after;
  std::int64_t dropped = 0;        // rows whose record is broken
  std::int64_t recovered = 0;      // entries that the database names again
  bool was_rebuilt = false;        // the database, from the segments
  std::vector<std::string> steps;  // what was done, as sentences
};

// What is no file is renamed to NAME.foreign first, in the directory itself, whatever it is: it is
// neither opened nor removed, and its place is then that of a file that is missing. The folder
// `segments` stays as it is.
//
// Makes the database and the control page anew where they are broken, drops entries that are, gives
// misnamed segments their names back, writes lost clears and declarations again, and removes
// leftovers and what nobody can read.
//
// Entries that lie in segments but not in the database are taken back only when it says itself that
// it lost some, by its counts or by those of the control page: then it is made anew from the
// segments, by the rule of every rebuild (FORMAT.md): the record is whole, no clear covers it, and
// no record of the key has a greater sequence. What was evicted or dropped and had replaced an
// older entry is covered by a clear; other evicted entries may come back with their right value.
// Failures: as verify_directory(), and those of writing.
Result<Mending> mend_directory(fs::FileSystem& file_system, const VerifyOptions& options);

}  // namespace modcache::store
