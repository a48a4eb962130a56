// SPDX-License-Identifier: Apache-2.0
//
// A file system that fails on demand: it passes calls on to a real one unless its Faults say that
// one fails, and so does the VFS that it gives to SQLite. It keeps the names of what was synced, in
// order, and tells a DiskModel of every change where it was given one. Nothing is really synced,
// which takes most of the time of a test, since no test loses power.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fs/file_system.h"
#include "support/disk_model.h"
#include "support/fault_sqlite_vfs.h"
#include "support/faults.h"

namespace modcache::testing {

class FaultFileSystem final : public fs::FileSystem {
 public:
  explicit FaultFileSystem(fs::FileSystem& real, DiskModel* disk = nullptr)
      : real_(real), disk_(disk), sqlite_(faults_, disk) {}

  Faults& faults() { return faults_; }

  // For tests of our own calls alone: of those that change or sync something, SQLite's left out,
  // the `call`-th from now on (the first is 1) fails, and with `forever` all later ones do too.
  void fail_at(std::int64_t call, Fault fault, bool forever = false) {
    faults_.fail_at(call, fault, forever, kChangingCalls);
  }
  void heal() { faults_.heal(); }
  // Before anything is opened: who opens `path` gets the file at `target`.
  void redirect(const std::string& path, const std::string& target) { redirected_[path] = target; }
  // Before anything is opened: the times of changes that info() tells are multiples of a tick, as
  // those of kernels before 6.13 are.
  void set_tick_ns(std::int64_t tick_ns) { tick_ns_ = tick_ns; }
  std::int64_t failures() const { return faults_.failures(); }
  // What was said to be read soon (fs::File::expect); forgotten when asked.
  struct Expected {
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Expected> take_expected() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(expected_, {});
  }
  // Names without the folder; forgotten when asked.
  std::vector<std::string> take_syncs() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(syncs_, {});
  }

  Result<std::unique_ptr<fs::File>> open(const std::string& path, fs::OpenMode mode) override {
    const bool may_create = mode == fs::OpenMode::kReadWriteCreate ||
                            mode == fs::OpenMode::kCreateExclusive ||
                            mode == fs::OpenMode::kCreateToShare;
    MODCACHE_RETURN_IF_ERROR(ask(may_create ? Call::kCreate : Call::kOpen, "open", path));
    const auto redirected = redirected_.find(path);
    auto file = real_.open(redirected == redirected_.end() ? path : redirected->second, mode);
    if (!file.is_ok()) return file.status();
    auto inode = disk_ != nullptr ? disk_->open(path, may_create) : nullptr;
    return std::unique_ptr<fs::File>(
        std::make_unique<FaultFile>(*this, std::move(file).value(), std::move(inode)));
  }
  Result<fs::FileInfo> info(const std::string& path) override {
    MODCACHE_RETURN_IF_ERROR(ask(Call::kInspect, "inspect", path));
    auto info = real_.info(path);
    if (!info.is_ok() || tick_ns_ == 0) return info;
    fs::FileInfo in_ticks = info.value();
    in_ticks.changed_ns -= in_ticks.changed_ns % tick_ns_;
    return in_ticks;
  }
  Result<fs::FileInfo> name_info(const std::string& path) override {
    MODCACHE_RETURN_IF_ERROR(ask(Call::kInspect, "inspect", path));
    return real_.name_info(path);
  }
  std::string resolve(const std::string& path) override { return real_.resolve(path); }
  Status restrict_rights(const std::string& path) override { return real_.restrict_rights(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    MODCACHE_RETURN_IF_ERROR(ask(Call::kList, "list", path));
    return real_.list(path);
  }
  Status make_directories(const std::string& path) override {
    MODCACHE_RETURN_IF_ERROR(ask(Call::kCreate, "make", path));
    MODCACHE_RETURN_IF_ERROR(real_.make_directories(path));
    for (std::size_t end = path.find('/', 1); disk_ != nullptr; end = path.find('/', end + 1)) {
      disk_->make_directory(path.substr(0, end));
      if (end == std::string::npos) break;
    }
    return Status::ok();
  }
  Status rename(const std::string& from, const std::string& to) override {
    MODCACHE_RETURN_IF_ERROR(ask(Call::kRename, "rename", from));
    MODCACHE_RETURN_IF_ERROR(real_.rename(from, to));
    if (disk_ != nullptr) disk_->rename(from, to);
    return Status::ok();
  }
  Status remove(const std::string& path) override {
    MODCACHE_RETURN_IF_ERROR(ask(Call::kRemove, "remove", path));
    MODCACHE_RETURN_IF_ERROR(real_.remove(path));
    if (disk_ != nullptr) disk_->remove(path);
    return Status::ok();
  }
  Status sync_directory(const std::string& path) override {
    note_sync(path);
    MODCACHE_RETURN_IF_ERROR(ask(Call::kSync, "sync", path));
    if (disk_ != nullptr) disk_->sync_directory(path);
    return Status::ok();
  }
  bool is_writable(const std::string& path) override { return real_.is_writable(path); }
  const char* sqlite_vfs() const override { return sqlite_.name(); }

 private:
  class FaultFile final : public fs::File {
   public:
    FaultFile(FaultFileSystem& system, std::unique_ptr<fs::File> real, DiskModel::InodePtr inode)
        : system_(system), real_(std::move(real)), inode_(std::move(inode)) {}

    Result<std::size_t> read_at(std::uint64_t offset, void* target,
                                std::size_t size_bytes) const override {
      MODCACHE_RETURN_IF_ERROR(system_.ask(Call::kRead, "read", path()));
      return real_->read_at(offset, target, size_bytes);
    }
    Status write_at(std::uint64_t offset, const std::vector<fs::Slice>& pieces) override {
      const auto fault = system_.faults_.next(Call::kWrite, "write", path());
      if (!fault) return write(offset, pieces);
      if (*fault == Fault::kShortWrite || *fault == Fault::kKillHalfway) {
        std::vector<fs::Slice> half(pieces.begin(), pieces.begin() + (pieces.size() + 1) / 2);
        half.back().size_bytes /= 2;
        (void)write(offset, half);
      }
      if (*fault == Fault::kKillHalfway) ::raise(SIGKILL);
      return failure(*fault, path());
    }
    Status truncate(std::uint64_t size_bytes) override {
      MODCACHE_RETURN_IF_ERROR(system_.ask(Call::kTruncate, "truncate", path()));
      MODCACHE_RETURN_IF_ERROR(real_->truncate(size_bytes));
      if (system_.disk_ != nullptr) system_.disk_->truncate(inode_, size_bytes);
      return Status::ok();
    }
    Status sync_data() override {
      system_.note_sync(path());
      MODCACHE_RETURN_IF_ERROR(system_.ask(Call::kSync, "sync", path()));
      if (system_.disk_ != nullptr) system_.disk_->sync(inode_);
      return Status::ok();
    }
    Result<fs::FileInfo> info() const override {
      MODCACHE_RETURN_IF_ERROR(system_.ask(Call::kInspect, "inspect", path()));
      return real_->info();
    }
    Result<std::shared_ptr<fs::Mapping>> map(std::size_t size_bytes,
                                             bool is_writable) const override {
      MODCACHE_RETURN_IF_ERROR(system_.ask(Call::kMap, "map", path()));
      auto mapping = real_->map(size_bytes, is_writable);
      if (mapping.is_ok() && is_writable && system_.disk_ != nullptr) {
        system_.disk_->map(inode_, mapping.value());
      }
      return mapping;
    }
    Result<std::shared_ptr<fs::Mapping>> map_copy(std::uint64_t offset,
                                                  std::size_t size_bytes) const override {
      MODCACHE_RETURN_IF_ERROR(system_.ask(Call::kMap, "map", path()));
      return real_->map_copy(offset, size_bytes);
    }
    void expect(std::uint64_t offset, std::uint64_t size_bytes) const override {
      const std::lock_guard<std::mutex> lock(system_.mutex_);
      system_.expected_.push_back({offset, size_bytes});
    }
    Result<bool> try_lock() override {
      const auto fault = system_.faults_.next(Call::kLock, "lock", path());
      if (fault && *fault == Fault::kBusy) return false;
      if (fault) return failure(*fault, path());
      return real_->try_lock();
    }
    void unlock() override { real_->unlock(); }
    Result<bool> try_hold(Hold hold) override {
      const auto fault = system_.faults_.next(Call::kLock, "hold", path());
      if (fault && *fault == Fault::kBusy) return false;
      if (fault) return failure(*fault, path());
      return real_->try_hold(hold);
    }
    Result<std::optional<Hold>> other_hold() const override { return real_->other_hold(); }
    const std::string& path() const override { return real_->path(); }

   private:
    Status write(std::uint64_t offset, const std::vector<fs::Slice>& pieces) {
      MODCACHE_RETURN_IF_ERROR(real_->write_at(offset, pieces));
      if (system_.disk_ == nullptr) return Status::ok();
      std::string bytes;
      for (const fs::Slice& piece : pieces) {
        bytes.append(static_cast<const char*>(piece.data), piece.size_bytes);
      }
      system_.disk_->write(inode_, offset, bytes);
      return Status::ok();
    }

    FaultFileSystem& system_;
    const std::unique_ptr<fs::File> real_;
    const DiskModel::InodePtr inode_;
  };

  void note_sync(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    syncs_.push_back(path.substr(path.rfind('/') + 1));
  }
  static Status failure(Fault fault, const std::string& path) {
    const std::string message =
        std::string("injected failure (") + name_of(fault) + ") on '" + path + "'";
    const bool is_full = fault == Fault::kNoSpace || fault == Fault::kShortWrite;
    return is_full ? Status::no_space(message) : Status::io_error(message);
  }
  Status ask(Call call, const char* doing, const std::string& path) {
    const auto fault = faults_.next(call, doing, path);
    return fault ? failure(*fault, path) : Status::ok();
  }

  fs::FileSystem& real_;
  DiskModel* const disk_;
  std::mutex mutex_;
  std::vector<std::string> syncs_;
  std::vector<Expected> expected_;
  std::map<std::string, std::string> redirected_;
  std::int64_t tick_ns_ = 0;
  Faults faults_;
  FaultSqliteVfs sqlite_;
};

}  // namespace modcache::testing
