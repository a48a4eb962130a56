// SPDX-License-Identifier: Apache-2.0
#include "store/counters/counter_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"

namespace modcache::store {
namespace {

constexpr char kCounterMagic[8] = {'m', 'o', 'd', 'c', 'o', 'u', 'n', 't'};
constexpr std::uint32_t kCounterFileVersion = 2;
constexpr char kCountsSuffix[] = ".counts";

struct FileHead {
  std::uint64_t checksum;  // XXH3-64 of the rest
  char magic[8];
  std::uint32_t version;
  std::uint32_t slot_bytes;
  std::uint64_t id;
  std::int64_t created_us;
  std::uint64_t process;
};
static_assert(sizeof(FileHead) == 48);

// The identity of a slot. Its checksum is written last and seeded with the file's id: a slot whose
// checksum is not right is free, in the making or damaged.
struct SlotHead {
  std::uint64_t checksum;  // XXH3-64 of the rest
  std::int32_t day;
  std::uint32_t scope_bytes;  // of the text below
  char scope_digest[Digest128::kSizeBytes];
  char scope[kMostScopeBytes];
};
static_assert(sizeof(SlotHead) == 256);
static_assert(sizeof(SlotHead) + sizeof(CounterSlot) == kCounterSlotBytes);

// A slot that a process has taken and not named yet. No checksum of ours has this value: it would
// be as free.
constexpr std::uint64_t kFree = 0;
constexpr std::uint64_t kTaken = 1;

template <typename Head>
std::uint64_t checksum_of(const Head& head, std::uint64_t seed) {
  const auto* bytes = reinterpret_cast<const char*>(&head);
  const std::uint64_t sum =
      xxh3_64(bytes + sizeof head.checksum, sizeof head - sizeof head.checksum, seed);
  return std::max(sum, kTaken + 1);
}

SlotHead slot_head(std::string_view scope, std::int32_t day, std::uint64_t file_id) {
  SlotHead head{};
  head.day = day;
  head.scope_bytes = static_cast<std::uint32_t>(std::min(scope.size(), kMostScopeBytes));
  std::memcpy(head.scope_digest, xxh3_128(scope).byte_array().data(), Digest128::kSizeBytes);
  scope.copy(head.scope, head.scope_bytes);  // unlike memcpy it takes an empty one that has no data
  head.checksum = checksum_of(head, file_id);
  return head;
}

std::atomic<std::uint64_t>& word_at(std::byte* place) {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(place);
}

bool is_slot_of(const std::byte* place, const SlotHead& wanted) {
  return std::memcmp(place, &wanted, sizeof wanted) == 0;
}

}  // namespace

std::string counter_file_name(std::uint64_t id) { return segment_name(id) + kCountsSuffix; }

bool is_counter_file_name(const std::string& name) {
  const std::size_t digits = name.size() - std::min(name.size(), sizeof kCountsSuffix - 1);
  return name.substr(digits) == kCountsSuffix &&
         parse_segment_name(name.substr(0, digits)).has_value();
}

Result<std::unique_ptr<CounterFile>> CounterFile::create(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  // A cache that was removed is not made anew.
  MODCACHE_RETURN_IF_ERROR(file_system.info(directory.path()).status());
  MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.counters_path()));
  FileHead head{};
  std::copy(std::begin(kCounterMagic), std::end(kCounterMagic), head.magic);
  head.version = kCounterFileVersion;
  head.slot_bytes = kCounterSlotBytes;
  head.id = random_number();
  head.created_us = now_us();
  head.process = static_cast<std::uint64_t>(::getpid());
  head.checksum = checksum_of(head, 0);
  const std::string path = directory.counters_path() + '/' + counter_file_name(head.id);
  const std::string making = path + ".new";
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(making, fs::OpenMode::kCreateExclusive));
  auto made = [&]() -> Result<std::unique_ptr<CounterFile>> {
    // Zeros instead of a hole: a full disk has to show now, and not kill a process that counts.
    const std::string zeros(kCounterFileBytes - sizeof head, '\0');
    MODCACHE_RETURN_IF_ERROR(
        file->write_at(0, {{&head, sizeof head}, {zeros.data(), zeros.size()}}));
    MODCACHE_ASSIGN_OR_RETURN(auto identity, file->info());
    MODCACHE_ASSIGN_OR_RETURN(auto mapping, file->map(kCounterFileBytes, /*is_writable=*/true));
    MODCACHE_ASSIGN_OR_RETURN(const bool is_held, file->try_hold(fs::File::Hold::kShared));
    if (!is_held) return Status::busy("'" + making + "' is held by another process");
    MODCACHE_RETURN_IF_ERROR(file_system.rename(making, path));
    return std::unique_ptr<CounterFile>(
        new CounterFile(file_system, path, identity, std::move(mapping)));
  }();
  if (!made.is_ok()) (void)file_system.remove(making);
  return made;
}

CounterSlot* CounterFile::slot_of(std::string_view scope, std::int32_t day) {
  FileHead file_head{};
  std::memcpy(&file_head, mapping_->data(), sizeof file_head);
  const SlotHead wanted = slot_head(scope, day, file_head.id);
  for (std::size_t i = 0; i < kCounterSlots; ++i) {
    std::byte* const place = slot_at(i);
    std::uint64_t word = word_at(place).load(std::memory_order_acquire);
    if (word == kFree && word_at(place).compare_exchange_strong(word, kTaken)) {
      std::memcpy(place + sizeof word, reinterpret_cast<const char*>(&wanted) + sizeof word,
                  sizeof wanted - sizeof word);
      word_at(place).store(wanted.checksum, std::memory_order_release);
    } else if (word != wanted.checksum || !is_slot_of(place, wanted)) {
      continue;
    }
    return reinterpret_cast<CounterSlot*>(place + sizeof(SlotHead));
  }
  return nullptr;
}

bool CounterFile::is_in_place() const {
  const auto there = file_system_.name_info(path_);
  return there.is_ok() && there.value().is_same_file(identity_);
}

Result<ReadCounters> read_counter_file(const fs::File& file) {
  std::string bytes(kCounterFileBytes, '\0');
  MODCACHE_ASSIGN_OR_RETURN(auto size, file.read_at(0, bytes.data(), bytes.size()));
  FileHead head{};
  std::memcpy(&head, bytes.data(), sizeof head);
  if (size != bytes.size() ||
      !std::equal(std::begin(kCounterMagic), std::end(kCounterMagic), head.magic) ||
      head.checksum != checksum_of(head, 0)) {
    return Status::corruption("'" + file.path() + "' is no file of counters");
  }
  if (head.version != kCounterFileVersion || head.slot_bytes != kCounterSlotBytes) {
    return Status::unsupported_version("'" + file.path() + "' has format version " +
                                       std::to_string(head.version));
  }
  ReadCounters read{head.id, head.created_us, head.process, {}};
  for (std::size_t i = 0; i < kCounterSlots; ++i) {
    const char* const place = bytes.data() + (i + 1) * kCounterSlotBytes;
    SlotHead slot{};
    std::memcpy(&slot, place, sizeof slot);
    if (slot.scope_bytes > kMostScopeBytes || slot.checksum != checksum_of(slot, head.id)) continue;
    CountedDay day{std::string(slot.scope, slot.scope_bytes), slot.day, {}};
    std::memcpy(day.counts.data(), place + sizeof slot, sizeof day.counts);
    read.days.push_back(std::move(day));
  }
  return read;
}

}  // namespace modcache::store
