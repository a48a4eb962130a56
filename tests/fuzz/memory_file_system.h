// SPDX-License-Identifier: Apache-2.0
//
// A file system with one file, of bytes in memory, that is never changed: what is mapped for
// writing is a copy.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/file_system.h"

namespace modcache::fuzz {

class MemoryFileSystem final : public fs::FileSystem {
 public:
  MemoryFileSystem(std::string path, std::string_view bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  Result<std::unique_ptr<fs::File>> open(const std::string& path, fs::OpenMode mode) override {
    if (path != path_) return Status::not_found(path);
    const bool is_there = mode == fs::OpenMode::kRead || mode == fs::OpenMode::kReadFollowing ||
                          mode == fs::OpenMode::kReadWrite;
    if (!is_there) return refused();
    return std::unique_ptr<fs::File>(std::make_unique<MemoryFile>(path, bytes_));
  }
  Result<fs::FileInfo> info(const std::string& path) override {
    if (path != path_) return Status::not_found(path);
    return info_of(bytes_);
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    if (path_.rfind(path + "/", 0) != 0) return std::vector<std::string>{};
    return std::vector<std::string>{path_.substr(path.size() + 1)};
  }
  Status make_directories(const std::string&) override { return refused(); }
  Status rename(const std::string&, const std::string&) override { return refused(); }
  Status remove(const std::string&) override { return refused(); }
  Status sync_directory(const std::string&) override { return refused(); }
  bool is_writable(const std::string&) override { return false; }

 private:
  static Status refused() { return Status::io_error("for reading alone"); }
  static fs::FileInfo info_of(const std::string& bytes) {
    fs::FileInfo info;
    info.size_bytes = bytes.size();
    info.link_count = 1;
    return info;
  }

  class MemoryMapping final : public fs::Mapping {
   public:
    explicit MemoryMapping(std::vector<std::uint64_t> words, std::size_t size_bytes)
        : fs::Mapping(reinterpret_cast<std::byte*>(words.data()), size_bytes),
          words_(std::move(words)) {}

   private:
    std::vector<std::uint64_t> words_;  // moved: the bytes stay where they are
  };

  class MemoryFile final : public fs::File {
   public:
    MemoryFile(std::string path, const std::string& bytes)
        : path_(std::move(path)), bytes_(bytes) {}

    Result<std::size_t> read_at(std::uint64_t offset, void* target,
                                std::size_t size_bytes) const override {
      if (offset >= bytes_.size()) return std::size_t{0};
      return bytes_.copy(static_cast<char*>(target), size_bytes, offset);
    }
    Status write_at(std::uint64_t, const std::vector<fs::Slice>&) override { return refused(); }
    Status truncate(std::uint64_t) override { return refused(); }
    Status sync_data() override { return refused(); }
    Result<fs::FileInfo> info() const override { return info_of(bytes_); }
    Result<std::shared_ptr<fs::Mapping>> map(std::size_t size_bytes, bool) const override {
      std::vector<std::uint64_t> words(size_bytes / 8 + 1);
      std::memcpy(words.data(), bytes_.data(), std::min(size_bytes, bytes_.size()));
      return std::shared_ptr<fs::Mapping>(
          std::make_shared<MemoryMapping>(std::move(words), size_bytes));
    }
    Result<bool> try_lock() override { return true; }
    void unlock() override {}
    const std::string& path() const override { return path_; }

   private:
    const std::string path_;
    const std::string& bytes_;
  };

  const std::string path_;
  const std::string bytes_;
};

}  // namespace modcache::fuzz
