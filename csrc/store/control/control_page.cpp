// SPDX-License-Identifier: Apache-2.0
#include "store/control/control_page.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"

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
constexpr std::size_t kCommittedOffset = 384;
constexpr std::size_t kSupersededOffset = 392;
constexpr std::size_t kConfirmedOffset = 400;
constexpr std::size_t kBootOffset = 408;
constexpr std::size_t kRemovalPendingOffset = 416;
// Processes that died have taken fewer numbers than that without using them.
constexpr std::uint64_t kMostUnusedSequences = std::uint64_t{1} << 40;
// A machine gives out fewer between two moments in which its page reaches the disk.
constexpr std::uint64_t kMostLostSequences = std::uint64_t{1} << 28;
constexpr std::size_t kModeOffset = 320;
constexpr std::size_t kReclaimsOffset = 448;
constexpr std::size_t kEvictionsOffset = 456;
constexpr std::size_t kIndexGenerationOffset = 512;
constexpr std::size_t kLeaveRequestsOffset = 576;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

void put_number(std::string& page, std::size_t offset, std::uint64_t number) {
  std::memcpy(page.data() + offset, &number, sizeof number);
}

// The mode's word of a file that may be anything; kNoModeWord where it holds no mode.
ModeWord mode_word_in(const fs::File& file) {
  ModeWord word = kNoModeWord;
  auto count = file.read_at(kModeOffset, &word, sizeof word);
  const bool is_whole = count.is_ok() && count.value() == sizeof word;
  return is_whole && mode_in(word).has_value() ? word : kNoModeWord;
}

// Who has the page that was replaced open looks for the new one. A file that is too short for it
// stays as it is.
void mark_superseded(fs::File& file) {
  auto info = file.info();
  if (!info.is_ok() || info.value().size_bytes < kControlSizeBytes) return;
  (void)file.write_at(kModeOffset, {{&kSupersededModeWord, sizeof kSupersededModeWord}});
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
                           Sequence next_sequence, std::uint64_t boot) {
  std::string page(kControlSizeBytes, '\0');
  std::memcpy(page.data(), kMagic, sizeof kMagic);
  std::memcpy(page.data() + kVersionOffset, &kControlFormatVersion, sizeof kControlFormatVersion);
  const std::uint32_t echo = ~kControlFormatVersion;
  std::memcpy(page.data() + kVersionEchoOffset, &echo, sizeof echo);
  put_number(page, kNextSequenceOffset, next_sequence);
  put_number(page, kCommittedOffset, next_sequence - 1);
  put_number(page, kBootOffset, boot);
  // What the page before knew is lost.
  put_number(page, kSupersededOffset, next_sequence - 1);
  // Nobody must take this page's count for that of another. Nor is it 0, which is what a page
  // without counters (pread failed) has.
  put_number(page, kRemovalsOffset, first_removals());
  put_number(page, kEpochOffset, random_number());
  auto replaced = file_system.open(path, fs::OpenMode::kReadWrite);
  if (replaced.is_ok()) put_number(page, kModeOffset, mode_word_in(*replaced.value()));
  const std::string temporary = path + ".new";
  // A process that died here left one, or a stranger put a link there.
  MODCACHE_RETURN_IF_ERROR(file_system.remove(temporary));
  {
    auto file = file_system.open(temporary, fs::OpenMode::kCreateExclusive);
    if (!file.is_ok()) return file.status();
    MODCACHE_RETURN_IF_ERROR(file.value()->write_at(0, {{page.data(), page.size()}}));
    // An older page after power loss is of use, an empty one is not.
    MODCACHE_RETURN_IF_ERROR(file.value()->sync_data());
  }
  MODCACHE_RETURN_IF_ERROR(file_system.rename(temporary, path));
  if (replaced.is_ok()) mark_superseded(*replaced.value());
  return Status::ok();
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

Sequence ControlPage::next() const { return load(kNextSequenceOffset); }

Status ControlPage::raise_sequence(Sequence sequence) {
  if (!is_whole())
    return Status::io_error("the control page '" + file_->path() + "' was cut short");
  Counter& next = counter(kNextSequenceOffset);
  std::uint64_t current = next.load(std::memory_order_acquire);
  while (current < sequence && !next.compare_exchange_weak(current, sequence)) {
  }
  return Status::ok();
}

Status ControlPage::raise_sequence_beyond_lost(Sequence sequence) {
  const Sequence known = std::max(load(kNextSequenceOffset), sequence);
  MODCACHE_RETURN_IF_ERROR(raise_sequence(known + kMostLostSequences));
  return file_->sync_data();
}

ModeWord ControlPage::mode_word() const { return load(kModeOffset); }

const std::atomic<ModeWord>& ControlPage::mapped_mode_word() const { return counter(kModeOffset); }

Status ControlPage::set_mode(DirectoryMode mode) {
  if (!is_whole())
    return Status::io_error("the control page '" + file_->path() + "' was cut short");
  counter(kModeOffset)
      .store(mode_word_of(static_cast<std::uint32_t>(mode)), std::memory_order_release);
  return file_->sync_data();
}

DirectoryMode ControlPage::mode_in_remains(fs::FileSystem& file_system, const std::string& path) {
  auto file = file_system.open(path, fs::OpenMode::kRead);
  if (!file.is_ok()) return DirectoryMode::kOn;
  return mode_in(mode_word_in(*file.value())).value_or(DirectoryMode::kOn);
}

std::uint64_t ControlPage::removals() const { return load(kRemovalsOffset); }
std::uint64_t ControlPage::clears() const { return load(kClearsOffset); }
std::uint64_t ControlPage::leave_requests() const { return load(kLeaveRequestsOffset); }
void ControlPage::add_leave_request() {
  if (is_whole()) counter(kLeaveRequestsOffset).fetch_add(1, std::memory_order_acq_rel);
}
std::uint64_t ControlPage::epoch() const { return load(kEpochOffset); }
Sequence ControlPage::committed() const { return load(kCommittedOffset); }

void ControlPage::raise_committed(Sequence sequence) {
  if (sequence > committed()) set_committed(sequence);
}
void ControlPage::set_committed(Sequence sequence) {
  if (is_whole()) counter(kCommittedOffset).store(sequence, std::memory_order_release);
}

Sequence ControlPage::confirmed() const { return load(kConfirmedOffset); }
Sequence ControlPage::surely_committed(std::uint64_t boot) const {
  return is_of_earlier_boot(boot) ? std::min(confirmed(), committed()) : committed();
}
void ControlPage::raise_confirmed(Sequence sequence) {
  if (is_whole() && sequence > confirmed()) {
    counter(kConfirmedOffset).store(sequence, std::memory_order_release);
  }
}
bool ControlPage::bears_last_sequence(Sequence sequence) const {
  return superseded() > 0 && sequence >= committed();
}
bool ControlPage::is_of_earlier_boot(std::uint64_t boot) const {
  const std::uint64_t known = load(kBootOffset);
  return known != 0 && boot != 0 && known != boot;
}
void ControlPage::set_boot(std::uint64_t boot) {
  if (is_whole() && boot != 0) counter(kBootOffset).store(boot, std::memory_order_release);
}

Sequence ControlPage::superseded() const { return load(kSupersededOffset); }
void ControlPage::raise_superseded(Sequence sequence) {
  if (is_whole() && sequence > superseded()) {
    counter(kSupersededOffset).store(sequence, std::memory_order_release);
  }
}

// Read in the order in which they grow.
bool ControlPage::is_plausible(Sequence last_sequence) const {
  const Sequence committed = this->committed();
  const Sequence next = load(kNextSequenceOffset);
  return committed < next && next < std::max(last_sequence, committed) + kMostUnusedSequences;
}

void ControlPage::add_removal() {
  if (is_whole()) counter(kRemovalsOffset).fetch_add(1, std::memory_order_acq_rel);
}
void ControlPage::add_clear() {
  if (is_whole()) counter(kClearsOffset).fetch_add(1, std::memory_order_acq_rel);
}
bool ControlPage::is_removal_pending() const { return load(kRemovalPendingOffset) != 0; }
void ControlPage::set_removal_pending(bool is_pending) {
  if (is_whole()) {
    counter(kRemovalPendingOffset).store(is_pending ? 1 : 0, std::memory_order_release);
  }
}
std::uint64_t ControlPage::reclaims() const { return load(kReclaimsOffset); }
void ControlPage::add_reclaim() {
  if (is_whole()) counter(kReclaimsOffset).fetch_add(1, std::memory_order_acq_rel);
}
std::uint64_t ControlPage::evictions() const { return load(kEvictionsOffset); }
void ControlPage::add_eviction() {
  if (is_whole()) counter(kEvictionsOffset).fetch_add(1, std::memory_order_acq_rel);
}
std::uint64_t ControlPage::index_generation() const { return load(kIndexGenerationOffset); }
void ControlPage::set_index_generation(std::uint64_t generation) {
  if (is_whole()) {
    counter(kIndexGenerationOffset).store(generation, std::memory_order_release);
  }
}

void ControlPage::renew_epoch() {
  if (is_whole()) counter(kEpochOffset).fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace modcache::store
