// SPDX-License-Identifier: Apache-2.0
#include "store/control/control_page.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/removals.h"

namespace modcache::store {
namespace {

constexpr char kMagic[8] = {'m', 'o', 'd', 'c', 'c', 't', 'r', 'l'};
constexpr std::size_t kVersionOffset = 8;
// The version with all bits flipped, so that a damaged page does not pass for one of another
// version.
constexpr std::size_t kVersionEchoOffset = 12;
constexpr std::size_t kModeOffset = 320;
// An upper bound for the sequences that processes took and did not use before they died.
constexpr std::uint64_t kMostUnusedSequences = std::uint64_t{1} << 40;
// An upper bound for the sequences that a machine takes between two times at which the page reaches
// the disk.
constexpr std::uint64_t kMostLostSequences = std::uint64_t{1} << 28;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

void put_number(std::string& page, std::size_t offset, std::uint64_t number) {
  std::memcpy(page.data() + offset, &number, sizeof number);
}

// Returns the mode's word in a file of any content; kNoModeWord where it holds no mode.
ModeWord mode_word_in(const fs::File& file) {
  ModeWord word = kNoModeWord;
  auto count = file.read_at(kModeOffset, &word, sizeof word);
  const bool is_whole = count.is_ok() && count.value() == sizeof word;
  return is_whole && mode_in(word).has_value() ? word : kNoModeWord;
}

// Tells processes that have the replaced page open to look for the new one. A file that is too
// short for the mark stays as it is.
void mark_superseded(fs::File& file) {
  auto info = file.info();
  if (!info.is_ok() || info.value().size_bytes < kControlSizeBytes) return;
  (void)file.write_at(kModeOffset, {{&kSupersededModeWord, sizeof kSupersededModeWord}});
}

}  // namespace

Result<std::unique_ptr<ControlPage>> ControlPage::open(fs::FileSystem& file_system,
                                                       const std::string& path, ReadVia read_via,
                                                       bool is_writable) {
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(path, is_writable ? fs::OpenMode::kReadWrite
                                                                          : fs::OpenMode::kRead));
  MODCACHE_ASSIGN_OR_RETURN(auto identity, file->info());
  if (identity.size_bytes < kControlSizeBytes) {
    return Status::corruption("the control page '" + path + "' is too short");
  }
  char head[kVersionEchoOffset + 4];
  MODCACHE_ASSIGN_OR_RETURN(auto count, file->read_at(0, head, sizeof head));
  std::uint32_t version = 0;
  std::uint32_t echo = 0;
  std::memcpy(&version, head + kVersionOffset, sizeof version);
  std::memcpy(&echo, head + kVersionEchoOffset, sizeof echo);
  if (count != sizeof head || std::memcmp(head, kMagic, sizeof kMagic) != 0 || version == 0 ||
      version != ~echo) {
    return Status::corruption("'" + path + "' is no control page");
  }
  if (version != kControlFormatVersion) {
    return of_another_version(path, version, kControlFormatVersion);
  }
  MODCACHE_ASSIGN_OR_RETURN(auto mapping, file->map(kControlSizeBytes, is_writable));
  return std::unique_ptr<ControlPage>(
      new ControlPage(std::move(file), std::move(mapping), read_via, identity));
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
  // The knowledge of the replaced page is lost, so every entry may have been superseded.
  put_number(page, kSupersededOffset, next_sequence - 1);
  // A random part keeps a process from taking this page's count for that of another page. The count
  // is not 0, which stands for a page without counters (pread failed).
  put_number(page, kRemovalsOffset, first_removals());
  put_number(page, kEpochOffset, random_number());
  auto replaced = file_system.open(path, fs::OpenMode::kReadWrite);
  if (replaced.is_ok()) put_number(page, kModeOffset, mode_word_in(*replaced.value()));
  const std::string temporary = path + ".new";
  // A process may have died here and left one, or a stranger may have put a link there.
  MODCACHE_RETURN_IF_ERROR(file_system.remove(temporary));
  {
    MODCACHE_ASSIGN_OR_RETURN(auto file,
                              file_system.open(temporary, fs::OpenMode::kCreateExclusive));
    MODCACHE_RETURN_IF_ERROR(file->write_at(0, {{page.data(), page.size()}}));
    // After power loss an older page is of use, an empty one is not.
    MODCACHE_RETURN_IF_ERROR(file->sync_data());
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

Status ControlPage::check_whole() const {
  if (is_whole()) return Status::ok();
  return Status::io_error("the control page '" + file_->path() + "' was cut short");
}

void ControlPage::add_one(std::size_t offset) {
  if (is_whole()) counter(offset).fetch_add(1, std::memory_order_acq_rel);
}

void ControlPage::store(std::size_t offset, std::uint64_t number) {
  if (is_whole()) counter(offset).store(number, std::memory_order_release);
}

void ControlPage::raise(std::size_t offset, std::uint64_t number) {
  if (!is_whole() || number <= load(offset)) return;
  counter(offset).store(number, std::memory_order_release);
}

std::uint64_t ControlPage::load(std::size_t offset) const {
  if (read_via_ == ReadVia::kMmap) return counter(offset).load(std::memory_order_acquire);
  std::uint64_t number = 0;
  auto count = file_->read_at(offset, &number, sizeof number);
  return count.is_ok() && count.value() == sizeof number ? number : 0;
}

Result<Sequence> ControlPage::next_sequences(std::uint64_t count) {
  MODCACHE_RETURN_IF_ERROR(check_whole());
  return counter(kNextSequenceOffset).fetch_add(count, std::memory_order_acq_rel);
}

Status ControlPage::raise_sequence(Sequence sequence) {
  MODCACHE_RETURN_IF_ERROR(check_whole());
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
  MODCACHE_RETURN_IF_ERROR(check_whole());
  counter(kModeOffset)
      .store(mode_word_of(static_cast<std::uint32_t>(mode)), std::memory_order_release);
  return file_->sync_data();
}

DirectoryMode ControlPage::mode_in_remains(fs::FileSystem& file_system, const std::string& path) {
  auto file = file_system.open(path, fs::OpenMode::kRead);
  if (!file.is_ok()) return DirectoryMode::kOn;
  return mode_in(mode_word_in(*file.value())).value_or(DirectoryMode::kOn);
}

Sequence ControlPage::surely_committed(std::uint64_t boot) const {
  return is_of_earlier_boot(boot) ? std::min(confirmed(), committed()) : committed();
}

bool ControlPage::bears_last_sequence(Sequence sequence) const {
  return superseded() > 0 && sequence >= committed();
}

bool ControlPage::is_of_earlier_boot(std::uint64_t boot) const {
  const std::uint64_t known = load(kBootOffset);
  return known != 0 && boot != 0 && known != boot;
}

// Reads the counters in the order in which they grow, as others raise them meanwhile.
bool ControlPage::is_plausible(Sequence last_sequence) const {
  const Sequence committed = this->committed();
  const Sequence next = load(kNextSequenceOffset);
  return committed < next && next < std::max(last_sequence, committed) + kMostUnusedSequences;
}

}  // namespace modcache::store
