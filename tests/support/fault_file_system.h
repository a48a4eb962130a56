// SPDX-License-Identifier: Apache-2.0
//
// A file system that fails on demand: it passes calls on to a real one, counts those that change
// or sync something, and makes the n-th of them (and, if wanted, all after it) fail. It also keeps
// the names of what was synced, in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fs/file_system.h"

namespace modcache::testing {

enum class Fault {
  kNoSpace,     // ENOSPC, nothing written
  kIoError,     // EIO, nothing written
  kShortWrite,  // ENOSPC after half of the bytes were written
};

class FaultFileSystem final : public fs::FileSystem {
 public:
  explicit FaultFileSystem(fs::FileSystem& real) : real_(real) {}

  // The `call`-th counted call from now on (the first is 1) fails, and with `forever` all later
  // ones do too.
  void fail_at(std::int64_t call, Fault fault, bool forever = false) {
    fault_ = fault;
    forever_ = forever;
    calls_ = 0;
    failures_ = 0;
    fail_at_ = call;
  }
  void heal() { fail_at_ = 0; }
  std::int64_t calls() const { return calls_; }
  std::int64_t failures() const { return failures_; }
  // Names without the folder; forgotten when asked.
  std::vector<std::string> take_syncs() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(syncs_, {});
  }

  Result<std::unique_ptr<fs::File>> open(const std::string& path, fs::OpenMode mode) override {
    const bool may_create =
        mode == fs::OpenMode::kReadWriteCreate || mode == fs::OpenMode::kCreateExclusive;
    if (may_create && fails()) return failure(path);
    auto file = real_.open(path, mode);
    if (!file.is_ok()) return file.status();
    return std::unique_ptr<fs::File>(std::make_unique<FaultFile>(*this, std::move(file).value()));
  }
  Result<fs::FileInfo> info(const std::string& path) override { return real_.info(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return real_.list(path);
  }
  Status make_directories(const std::string& path) override {
    return fails() ? failure(path) : real_.make_directories(path);
  }
  Status rename(const std::string& from, const std::string& to) override {
    return fails() ? failure(from) : real_.rename(from, to);
  }
  Status remove(const std::string& path) override {
    return fails() ? failure(path) : real_.remove(path);
  }
  Status sync_directory(const std::string& path) override {
    note_sync(path);
    return fails() ? failure(path) : real_.sync_directory(path);
  }
  bool is_writable(const std::string& path) override { return real_.is_writable(path); }

 private:
  class FaultFile final : public fs::File {
   public:
    FaultFile(FaultFileSystem& system, std::unique_ptr<fs::File> real)
        : system_(system), real_(std::move(real)) {}

    Result<std::size_t> read_at(std::uint64_t offset, void* target,
                                std::size_t size_bytes) const override {
      return real_->read_at(offset, target, size_bytes);
    }
    Status write_at(std::uint64_t offset, const std::vector<fs::Slice>& pieces) override {
      if (!system_.fails()) return real_->write_at(offset, pieces);
      if (system_.fault_ == Fault::kShortWrite) {
        std::vector<fs::Slice> half(pieces.begin(), pieces.begin() + (pieces.size() + 1) / 2);
        half.back().size_bytes /= 2;
        (void)real_->write_at(offset, half);
      }
      return system_.failure(path());
    }
    Status sync_data() override {
      system_.note_sync(path());
      return system_.fails() ? system_.failure(path()) : real_->sync_data();
    }
    Result<fs::FileInfo> info() const override { return real_->info(); }
    Result<std::shared_ptr<fs::Mapping>> map(std::size_t size_bytes,
                                             bool is_writable) const override {
      return real_->map(size_bytes, is_writable);
    }
    Result<bool> try_lock() override { return real_->try_lock(); }
    void unlock() override { real_->unlock(); }
    const std::string& path() const override { return real_->path(); }

   private:
    FaultFileSystem& system_;
    const std::unique_ptr<fs::File> real_;
  };

  void note_sync(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    syncs_.push_back(path.substr(path.rfind('/') + 1));
  }
  bool fails() {
    const std::int64_t call = ++calls_;
    const bool is_due = fail_at_ > 0 && (call == fail_at_ || (forever_ && call > fail_at_));
    if (is_due) ++failures_;
    return is_due;
  }
  Status failure(const std::string& path) const {
    const std::string message = "injected failure on '" + path + "'";
    return fault_ == Fault::kIoError ? Status::io_error(message) : Status::no_space(message);
  }

  fs::FileSystem& real_;
  std::mutex mutex_;
  std::vector<std::string> syncs_;
  std::atomic<Fault> fault_{Fault::kIoError};
  std::atomic<bool> forever_{false};
  std::atomic<std::int64_t> calls_{0};
  std::atomic<std::int64_t> failures_{0};
  std::atomic<std::int64_t> fail_at_{0};
};

}  // namespace modcache::testing
