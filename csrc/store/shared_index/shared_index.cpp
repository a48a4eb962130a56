// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/shared_index.h"

#include <algorithm>
#include <utility>

#include "store/control/boot.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"

namespace modcache::store {
namespace {

// How many lookups ahead the table's cache lines are prefetched.
constexpr std::size_t kSlotsAhead = 8;

}  // namespace

SharedIndex::SharedIndex(const Directory& directory, ControlPage* control,
                         const fs::FileInfo& database, ReadVia read_via, bool is_writable)
    : directory_(directory),
      control_(control),
      database_(database),
      read_via_(read_via),
      is_writable_(is_writable) {}

Result<IndexTable::Owner> SharedIndex::owner() const {
  MODCACHE_ASSIGN_OR_RETURN(auto boot, boot_of_machine(directory_.file_system()));
  return IndexTable::Owner{{boot.high, boot.low}, database_.inode, control_->epoch()};
}

SharedIndex::TablePtr SharedIndex::table() const {
  if (control_ == nullptr) return nullptr;
  const std::uint64_t generation = control_->index_generation();
  MutexLock lock(mutex_);
  if (table_ != nullptr && table_->generation() == generation) {
    // With ReadVia::kPread a file that somebody cuts short must not kill the process.
    if (read_via_ == ReadVia::kMmap || table_->is_whole()) return table_;
    table_ = nullptr;
    refused_ = generation;
    return nullptr;
  }
  table_ = nullptr;
  if (generation == 0 || generation == refused_) return nullptr;
  // The file may already be a later one than the page says; the page will say so soon.
  refused_ = generation;
  auto owner = this->owner();
  if (!owner.is_ok()) return nullptr;
  auto opened = IndexTable::open(directory_.file_system(), directory_.index_map_path(),
                                 owner.value(), is_writable_);
  if (!opened.is_ok() || opened.value()->generation() != generation) return nullptr;
  refused_ = 0;
  table_ = std::move(opened).value();
  return table_;
}

SharedIndex::Slot SharedIndex::slot_of(const Change& change) {
  return {change.address.high, change.segment,    change.offset,
          change.sequence,     change.size_bytes, change.usage};
}

SharedIndex::Answer SharedIndex::find(const Digest128& address, Slot& slot) const {
  const TablePtr table = readable();
  return table == nullptr ? Answer::kUnknown : table->find(address.high, slot);
}

void SharedIndex::find_all(
    std::span<const Digest128> addresses, const std::vector<std::size_t>& rows,
    const std::function<void(std::size_t, Answer, const Slot&)>& visit) const {
  const TablePtr table = readable();
  for (std::size_t ahead = 0; table != nullptr && ahead < rows.size() && ahead < kSlotsAhead;
       ++ahead) {
    table->expect(addresses[rows[ahead]].high);
  }
  for (std::size_t place = 0; place < rows.size(); ++place) {
    Answer answer = Answer::kUnknown;
    Slot slot;
    if (table != nullptr) {
      if (place + kSlotsAhead < rows.size()) {
        table->expect(addresses[rows[place + kSlotsAhead]].high);
      }
      answer = table->find(addresses[rows[place]].high, slot);
    }
    visit(place, answer, slot);
  }
}

void SharedIndex::note_uses(std::span<const Digest128> addresses,
                            std::span<const Sequence> sequences, const UsedAt& used) {
  const TablePtr table = is_writable_ ? readable() : nullptr;
  if (table == nullptr) return;
  const std::size_t count = addresses.size();
  std::size_t i = 0;
  const IndexTable::Used used_here = [&](policy::Usage usage) { return used(i, usage); };
  for (std::size_t ahead = 0; ahead < count && ahead < kSlotsAhead; ++ahead) {
    table->expect(addresses[ahead].high);
  }
  for (; i < count; ++i) {
    if (i + kSlotsAhead < count) table->expect(addresses[i + kSlotsAhead].high);
    if (sequences[i] != 0) table->note_use(addresses[i].high, sequences[i], used_here);
  }
}

policy::Tick SharedIndex::tick(std::uint32_t count) {
  std::atomic<std::uint64_t>& ticks = policy_ == nullptr ? own_ticks_ : policy_->ticks();
  return static_cast<policy::Tick>(ticks.fetch_add(count, std::memory_order_relaxed) + count);
}

policy::Tick SharedIndex::now() const {
  const std::atomic<std::uint64_t>& ticks = policy_ == nullptr ? own_ticks_ : policy_->ticks();
  return static_cast<policy::Tick>(ticks.load(std::memory_order_relaxed));
}

void SharedIndex::catch_up_ticks() {
  if (policy_ != nullptr) return;
  std::uint64_t last = own_ticks_.load(std::memory_order_relaxed);
  for_each([&last](const Slot& slot) { last = std::max(last, std::uint64_t{slot.usage.used_at}); });
  std::uint64_t now = own_ticks_.load(std::memory_order_relaxed);
  while (now < last && !own_ticks_.compare_exchange_weak(now, last, std::memory_order_relaxed)) {
  }
}

void SharedIndex::share_policy_state(bool may_create) {
  if (read_via_ == ReadVia::kPread || policy_ != nullptr) return;
  auto opened = PolicyState::open(directory_, may_create);
  if (opened.is_ok()) policy_ = std::move(opened).value();
}

void SharedIndex::for_each(const std::function<void(const Slot&)>& visit) const {
  const TablePtr table = this->table();
  if (table != nullptr && !table->is_building()) table->for_each(visit);
}

void SharedIndex::sample(std::uint64_t seed, std::size_t count,
                         const std::function<void(const Slot&)>& visit) const {
  const TablePtr table = readable();
  if (table != nullptr) table->sample(seed, count, visit);
}

std::uint64_t SharedIndex::entries() const {
  const TablePtr table = this->table();
  return table == nullptr ? 0 : table->entries();
}

bool SharedIndex::has_all() const {
  const TablePtr table = this->table();
  return table != nullptr && !table->is_building();
}

std::uint64_t SharedIndex::size_bytes() const {
  const TablePtr table = this->table();
  return table == nullptr ? 0 : table->size_bytes();
}

void SharedIndex::begin() {
  if (control_ == nullptr || control_->index_generation() == 0) return;
  TablePtr table = this->table();
  // A process died while changing it, or this process cannot write to it.
  if (table == nullptr || !is_writable_ || !table->is_whole() || table->is_changing()) {
    return discard();
  }
  table->begin_change();
  changing_ = std::move(table);
}

void SharedIndex::apply(const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    if (changing_ == nullptr) return;
    const auto write = [&change](IndexTable& table) {
      return change.segment == 0 ? table.remove(change.address.high, change.sequence)
                                 : table.insert(slot_of(change), change.instead_of);
    };
    if (write(*changing_)) continue;
    // The builder of a table starts again with room for more.
    if (changing_->is_building()) return discard();
    auto grown = changing_->grown(directory_.file_system(), directory_.index_map_path());
    if (!grown.is_ok()) return discard();
    grown.value()->begin_change();
    changing_ = publish(std::move(grown));
    if (changing_ != nullptr && !write(*changing_)) return discard();
  }
}

void SharedIndex::commit(Sequence last_sequence) {
  const TablePtr table = std::exchange(changing_, nullptr);
  if (table == nullptr) return;
  table->set_last_sequence(std::max(last_sequence, table->last_sequence()));
  table->end_change();
}

void SharedIndex::cancel() {
  const TablePtr table = std::exchange(changing_, nullptr);
  if (table != nullptr) table->end_change();
}

void SharedIndex::check(Sequence last_sequence) {
  if (control_ == nullptr || control_->index_generation() == 0) return;
  const TablePtr table = this->table();
  if (table == nullptr || table->is_changing() || table->last_sequence() != last_sequence ||
      !table->is_plausible(last_sequence)) {
    discard();
  }
}

void SharedIndex::discard() {
  changing_ = nullptr;
  stop_building();
  if (control_ != nullptr) control_->set_index_generation(0);
}

SharedIndex::TablePtr SharedIndex::publish(Result<TablePtr> created) {
  if (!created.is_ok()) {
    discard();
    return nullptr;
  }
  TablePtr table = std::move(created).value();
  {
    MutexLock lock(mutex_);
    table_ = table;
    refused_ = 0;
  }
  control_->set_index_generation(table->generation());
  return table;
}

Result<SharedIndex::TablePtr> SharedIndex::create_table(std::uint64_t expected_entries,
                                                        Sequence last_sequence, bool is_building) {
  MODCACHE_ASSIGN_OR_RETURN(auto owner, this->owner());
  auto created =
      IndexTable::create(directory_.file_system(), directory_.index_map_path(), owner,
                         IndexTable::Size::for_entries(expected_entries, 0), is_building);
  if (created.is_ok()) created.value()->set_last_sequence(last_sequence);
  return created;
}

void SharedIndex::reset(Sequence last_sequence) {
  discard();
  if (control_ == nullptr || !is_writable_) return;
  publish(create_table(0, last_sequence, /*is_building=*/false));
}

bool SharedIndex::needs_building() const {
  if (control_ == nullptr || !is_writable_ || building_ != nullptr) return false;
  const TablePtr table = this->table();
  if (table == nullptr) return true;
  if (!table->is_building()) return false;
  auto is_abandoned = table->try_lock();
  if (!is_abandoned.is_ok() || !is_abandoned.value()) return false;
  table->unlock();
  return true;
}

bool SharedIndex::start_building(std::uint64_t expected_entries, Sequence last_sequence) {
  if (!needs_building()) return false;
  discard();
  auto created = create_table(expected_entries, last_sequence, /*is_building=*/true);
  if (!created.is_ok()) return false;
  auto is_locked = created.value()->try_lock();
  if (!is_locked.is_ok() || !is_locked.value()) return false;
  building_ = publish(std::move(created));
  return building_ != nullptr;
}

bool SharedIndex::is_builder() {
  if (building_ != nullptr && building_ == table()) return true;
  stop_building();
  return false;
}

bool SharedIndex::add_rows(const std::vector<Change>& rows) {
  if (!is_builder()) return false;
  building_->begin_change();
  for (const Change& row : rows) {
    if (building_->insert_older(slot_of(row))) continue;
    building_->end_change();
    discard();
    return false;
  }
  building_->end_change();
  return true;
}

void SharedIndex::stop_building() {
  if (building_ != nullptr) building_->unlock();
  building_ = nullptr;
}

bool SharedIndex::finish_building() {
  if (!is_builder()) return false;
  building_->begin_change();
  building_->finish_building();
  building_->end_change();
  stop_building();
  return true;
}

}  // namespace modcache::store
