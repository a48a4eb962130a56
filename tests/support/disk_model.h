// SPDX-License-Identifier: Apache-2.0
//
// DiskModel: what of the files below a folder would be there after power loss. It is told of each
// change and each sync, and builds directories as a disk could have them at that moment: all that
// was synced, and any part of what was not. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fs/file_system.h"

namespace modcache::testing {

class DiskModel {
 public:
  class Inode;
  using InodePtr = std::shared_ptr<Inode>;

  // `root` is there, and empty.
  explicit DiskModel(std::string root) : root_(std::move(root)) {}

  // Null: nothing is known of such a file.
  InodePtr open(const std::string& path, bool may_create);
  void write(const InodePtr& file, std::uint64_t offset, std::string_view bytes);
  void truncate(const InodePtr& file, std::uint64_t size_bytes);
  void sync(const InodePtr& file);
  // What is written through the mapping is never synced.
  void map(const InodePtr& file, const std::shared_ptr<fs::Mapping>& mapping);

  void make_directory(const std::string& path);
  void rename(const std::string& from, const std::string& to);
  void remove(const std::string& path);
  void sync_directory(const std::string& path);

  // Writes what the disk could hold now into the folder `target`, which is made; the same seed
  // chooses alike. Of what was not synced, names come and go in their order or in none, and
  // sectors of 512 or 4096 bytes each as they were or as they are.
  void lose_power(std::uint64_t seed, const std::string& target) const;

 private:
  struct Change {
    bool is_truncation = false;
    std::uint64_t offset = 0;  // or the size
    std::string bytes;
  };
  // A name that appears, disappears (no file) or moves.
  struct Naming {
    std::string path;
    std::string from;
    InodePtr file;
  };
  using Names = std::map<std::string, InodePtr>;

  bool is_below_root(const std::string& path) const { return path.rfind(root_ + '/', 0) == 0; }
  static void apply(const Naming& naming, Names& names);
  Names names_after(std::mt19937_64& random) const;
  static std::string contents_after(const Inode& file, std::mt19937_64& random);

  const std::string root_;
  mutable std::mutex mutex_;
  Names live_;
  Names durable_;
  std::vector<Naming> pending_;
};

class DiskModel::Inode {
 private:
  friend class DiskModel;
  bool is_directory = false;
  std::string durable;
  std::vector<Change> pending;
  std::weak_ptr<fs::Mapping> mapping;
};

}  // namespace modcache::testing
