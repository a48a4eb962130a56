// SPDX-License-Identifier: Apache-2.0
//
// Directory: the paths of a store's files, and their sizes. Keeps no file open; may be used from
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"

namespace modcache::store {

class Directory {
 public:
  // `file_system` must outlive this object. `path` must be free of links if anything is to be
  // opened in it. at() resolves the links of a path that a user gave, which may be one itself.
  Directory(fs::FileSystem& file_system, std::string path);
  static Directory at(fs::FileSystem& file_system, const std::string& path) {
    return Directory(file_system, file_system.resolve(path));
  }

  fs::FileSystem& file_system() const { return file_system_; }
  const std::string& path() const { return path_; }
  std::string database_path() const { return path_ + "/index.sqlite"; }
  std::string wal_path() const { return path_ + "/index.sqlite-wal"; }
  // Exists only where a process died that was making a database.
  std::string journal_path() const { return path_ + "/index.sqlite-journal"; }
  std::string shared_memory_path() const { return path_ + "/index.sqlite-shm"; }
  // A database that is being made; it is renamed to database_path() when it is complete.
  std::string new_database_path() const { return path_ + "/index.sqlite.new"; }
  std::string control_path() const { return path_ + "/control"; }
  std::string lock_path() const { return path_ + "/lock"; }
  // The index that all processes share, and the state of their policies.
  std::string index_map_path() const { return path_ + "/index.map"; }
  std::string policy_state_path() const { return path_ + "/policy.state"; }
  std::string segments_path() const { return path_ + "/segments"; }
  std::string notes_path() const { return path_ + "/notes"; }
  std::string counters_path() const { return path_ + "/counters"; }
  std::string segment_path(std::uint64_t id) const;
  // The name of a retired segment, which no row leads to but which somebody may still read.
  std::string retired_path(std::uint64_t id) const;

  // Return the ids of all segment files, ascending; other names are ignored. Empty while there is
  // no folder of segments.
  Result<std::vector<std::uint64_t>> segments() const;
  Result<std::vector<std::uint64_t>> retired_segments() const;

  // Returns the size of all files on disk, notes and counters included.
  Result<std::uint64_t> size_bytes() const;
  // Returns the size of the files in one folder (a path that this class gives), without its
  // subfolders.
  Result<std::uint64_t> folder_bytes(const std::string& path) const;

 private:
  Result<std::vector<std::uint64_t>> segments_with(std::string_view suffix) const;

  fs::FileSystem& file_system_;
  const std::string path_;
};

// Convert an id to "00c0ffee00c0ffee" (16 lower-case hexadecimal digits) and back.
std::string segment_name(std::uint64_t id);
std::optional<std::uint64_t> parse_segment_name(const std::string& name);

// kUnsupportedVersion: `file` has another format version than `ours`. Only one version is read.
Status of_another_version(const std::string& file, std::int64_t version, std::int64_t ours);

}  // namespace modcache::store
