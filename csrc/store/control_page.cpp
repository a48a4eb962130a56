// SPDX-License-Identifier: Apache-2.0
#include "store/control_page.h"

#include <cstring>
#include <random>
#include <utility>

namespace modcache::store {
namespace {

constexpr char kMagic[8] = {'m', 'o', 'd', 'c', 'c', 't', 'r', 'l'};
constexpr std::size_t kVersionOffset = 8;
// The version with all bits flipped: a damaged page must not pass for one of a newer version.
constexpr std::size_t kVersionEchoOffset = 12;
// Each counter has a cache line of its own: `removals` is read by every call of every process.
constexpr std::size_t kNextSequenceOffset = 64;
constexpr std::size_t kRemovalsOffset = 128;
constexpr std::size_t kClearsOffset = 192;
constexpr std::size_t kEpochOffset = 256;
// 320: the directory's mode, written and read from a later version on.

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

void put_number(std::string& page, std::size_t offset, std::uint64_t number) {
  std::memcpy(page.data() + offset, &number, sizeof number);
}

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

Result<std::unique_ptr<ControlPage>> ControlPage::open(fs::FileSystem& file_system,
                                                       const std::string& path, ReadVia read_via,
                                                       bool is_writable) {
  auto file = file_system.open(path, is_writable ? fs::OpenMode::kReadWrite : fs::OpenMode::kRead);
  if (!file.is_ok()) return file.status();
  auto identity = file.value()->info();
  if (!identity.is_ok()) return identity.status();
  if (identity.value().size_bytes < kControlSizeBytes) {
    return Status::corruption("the control page '" + path + "' is too short");
  }
  char head[kVersionEchoOffset + 4];
  auto count = file.value()->read_at(0, head, sizeof head);
  if (!count.is_ok()) return count.status();
  std::uint32_t version = 0;
  std::uint32_t echo = 0;
  std::memcpy(&version, head + kVersionOffset, sizeof version);
  std::memcpy(&echo, head + kVersionEchoOffset, sizeof echo);
  if (count.value() != sizeof head || std::memcmp(head, kMagic, sizeof kMagic) != 0 ||
      version == 0 || version != ~echo) {
    return Status::corruption("'" + path + "' is no control page");
  }
  if (version > kControlFormatVersion) {
    return Status::unsupported_version("the control page '" + path + "' has format version " +
                                       std::to_string(version) + ", this modcache reads up to " +
                                       std::to_string(kControlFormatVersion));
  }
  auto mapping = file.value()->map(kControlSizeBytes, is_writable);
  if (!mapping.is_ok()) return mapping.status();
  return std::unique_ptr<ControlPage>(new ControlPage(
      std::move(file).value(), std::move(mapping).value(), read_via, identity.value()));
}

Status ControlPage::create(fs::FileSystem& file_system, const std::string& path,
                           Sequence next_sequence) {
  std::string page(kControlSizeBytes, '\0');
  std::memcpy(page.data(), kMagic, sizeof kMagic);
  std::memcpy(page.data() + kVersionOffset, &kControlFormatVersion, sizeof kControlFormatVersion);
  const std::uint32_t echo = ~kControlFormatVersion;
  std::memcpy(page.data() + kVersionEchoOffset, &echo, sizeof echo);
  put_number(page, kNextSequenceOffset, next_sequence);
  // Not 0, so that a page without counters (pread failed) is told from a fresh one.
  put_number(page, kRemovalsOffset, 1);
  put_number(page, kEpochOffset, random_number());
  const std::string temporary = path + ".new";
  {
    auto file = file_system.open(temporary, fs::OpenMode::kReadWriteCreate);
    if (!file.is_ok()) return file.status();
    MODCACHE_RETURN_IF_ERROR(file.value()->write_at(0, {{page.data(), page.size()}}));
  }
  return file_system.rename(temporary, path);
}

ControlPage::ControlPage(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping,
                         ReadVia read_via, const fs::FileInfo& identity)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      read_via_(read_via),
      identity_(identity) {}

ControlPage::Counter& ControlPage::counter(std::size_t offset) const {
  return *reinterpret_cast<Counter*>(mapping_->data() + offset);
}

bool ControlPage::is_whole() const {
  auto info = file_->info();
  return info.is_ok() && info.value().size_bytes >= kControlSizeBytes;
}

std::uint64_t ControlPage::load(std::size_t offset) const {
  if (read_via_ == ReadVia::kMmap) return counter(offset).load(std::memory_order_acquire);
  std::uint64_t number = 0;
  auto count = file_->read_at(offset, &number, sizeof number);
  return count.is_ok() && count.value() == sizeof number ? number : 0;
}

Result<Sequence> ControlPage::next_sequences(std::uint64_t count) {
  if (!is_whole())
    return Status::io_error("the control page '" + file_->path() + "' was cut short");
  return counter(kNextSequenceOffset).fetch_add(count, std::memory_order_acq_rel);
}

Status ControlPage::raise_sequence(Sequence sequence) {
  if (!is_whole())
    return Status::io_error("the control page '" + file_->path() + "' was cut short");
  Counter& next = counter(kNextSequenceOffset);
  std::uint64_t current = next.load(std::memory_order_acquire);
  while (current < sequence && !next.compare_exchange_weak(current, sequence)) {
  }
  return Status::ok();
}

std::uint64_t ControlPage::removals() const { return load(kRemovalsOffset); }
std::uint64_t ControlPage::clears() const { return load(kClearsOffset); }
std::uint64_t ControlPage::epoch() const { return load(kEpochOffset); }

void ControlPage::add_removal() {
  if (is_whole()) counter(kRemovalsOffset).fetch_add(1, std::memory_order_acq_rel);
}
void ControlPage::add_clear() {
  if (is_whole()) counter(kClearsOffset).fetch_add(1, std::memory_order_acq_rel);
}
void ControlPage::renew_epoch() {
  if (is_whole()) counter(kEpochOffset).fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace modcache::store
