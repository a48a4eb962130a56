// SPDX-License-Identifier: Apache-2.0
#include "module/watch/watched_contents.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/own_memory.h"
#include "base/process_wide.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

// An immediate check may take up to 1 / kQuickShare of the run's time.
constexpr std::int64_t kQuickShare = 32;
// Otherwise checks take at most 1 / kPauseShare of the time...
constexpr std::int64_t kPauseShare = 10;
// ...and when no call has made one for this long, the thread that writes entries does.
constexpr std::int64_t kLateShare = 12;
// Storing a result takes this long in any case, so putting off a shorter check saves nothing.
constexpr std::int64_t kAlwaysQuickNs = 20'000;
// An estimate until a check was timed.
constexpr std::int64_t kBytesPerUs = 8'000;
constexpr std::int64_t kNsPerSecond = 1'000'000'000;

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Held for a few instructions at a time.
struct OpenMutex : ProcessWide<OpenMutex> {};

void refute_all(const std::vector<ConfirmationPtr>& open) {
  for (const auto& one : open) one->refute();
}

// Refutes those whose evidence is gone, so that no check can settle them any more.
void refute_unseen(const std::vector<ConfirmationPtr>& open) {
  for (const auto& one : open) {
    if (one->evidence() == nullptr) one->refute();
  }
}

// How much slower scattered elements are to read than dense ones.
constexpr std::size_t kCostOfGaps = 8;

}  // namespace

// Shared by the contents and their evidence, as either may outlive the other.
struct WatchedContents::Pace {
  std::atomic<bool> is_refuted{false};
  std::atomic<std::int64_t> checked_at_ns{0};
  std::atomic<std::int64_t> check_ns{0};  // how long one takes

  // Returns whether another check may run: `share` times the duration of a check must have passed
  // since the last one.
  bool has_paused(std::int64_t share) const {
    return now_ns() - checked_at_ns.load(std::memory_order_relaxed) >=
           share * check_ns.load(std::memory_order_relaxed);
  }
};

class WatchedContents::Memory final : public Evidence {
 public:
  Memory(std::shared_ptr<const ContentChunks> chunks, std::shared_ptr<Pace> pace)
      : chunks_(std::move(chunks)), pace_(std::move(pace)) {}

  // Takes a reference to the storage. Returns false when the storage is gone or has other memory.
  bool hold(const Place& place) {
    auto storage = place.storage.lock();
    if (storage == nullptr || storage->data() != place.data) return false;
    storages_.push_back({std::move(storage), place.data});
    return true;
  }

  bool holds() const override { return conclude(is_in_place() && chunks_->all_match_apart()); }
  bool is_due() const override { return pace_->has_paused(kLateShare); }

  // Reads the memory directly. Only threads that use the module may call it, as they hash weights
  // at any time, too.
  bool holds_for_caller() const {
    const std::int64_t started = now_ns();
    const bool holds = is_in_place() && chunks_->all_match();
    if (holds) pace_->check_ns.store(now_ns() - started, std::memory_order_relaxed);
    return conclude(holds);
  }

 private:
  struct Storage {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
  };

  // A storage can be given other memory (resize_, share_memory_), which the chunks do not know.
  bool is_in_place() const {
    return std::all_of(storages_.begin(), storages_.end(),
                       [](const Storage& one) { return one.storage->data() == one.data; });
  }
  bool conclude(bool holds) const {
    pace_->checked_at_ns.store(now_ns(), std::memory_order_relaxed);
    if (!holds) pace_->is_refuted.store(true, std::memory_order_relaxed);
    return holds;
  }

  const std::shared_ptr<const ContentChunks> chunks_;
  const std::shared_ptr<Pace> pace_;
  std::vector<Storage> storages_;
};

WatchedContents::WatchedContents()
    : chunks_(std::make_shared<ContentChunks>()),
      pace_(std::make_shared<Pace>()),
      read_until_ns_(now_ns()) {}

// After this no check can come for results whose evidence is gone.
WatchedContents::~WatchedContents() { refute_unseen(open_); }

void WatchedContents::keep_in_view(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  places_.push_back({tensor.storage().getWeakStorageImpl(), storage->data()});
}

bool WatchedContents::is_refuted() const {
  return pace_->is_refuted.load(std::memory_order_relaxed);
}

std::optional<std::size_t> WatchedContents::find_change() const {
  const auto total = static_cast<std::int64_t>(chunks_->size_bytes());
  if (total == 0) return std::nullopt;
  if (is_refuted()) return 0;
  const std::int64_t now = now_ns();
  std::int64_t since = read_until_ns_.load(std::memory_order_relaxed);
  const std::int64_t least = std::min<std::int64_t>(total, ContentChunks::kChunkBytes);
  if (now - since < least * kNsPerSecond / kBytesPerSecond) return std::nullopt;
  // When several threads come at the same time, one of them reads.
  if (!read_until_ns_.compare_exchange_strong(since, now, std::memory_order_relaxed)) {
    return std::nullopt;
  }
  const std::int64_t most = std::min(total, kMostBytesPerCall);
  const std::int64_t most_ns = most * kNsPerSecond / kBytesPerSecond;
  const std::int64_t owed =
      now - since >= most_ns ? most : (now - since) * kBytesPerSecond / kNsPerSecond;
  const std::uint64_t begin =
      position_.fetch_add(static_cast<std::uint64_t>(owed)) % static_cast<std::uint64_t>(total);
  auto left = owed;
  std::size_t chunk = chunks_->chunk_at(begin);
  std::uint64_t at = begin;
  while (left > 0) {
    if (!chunks_->matches(chunk)) {
      pace_->is_refuted.store(true, std::memory_order_relaxed);
      return chunks_->tensor_of(chunk);
    }
    left -= static_cast<std::int64_t>(chunks_->end_of(chunk) - at);
    at = chunks_->end_of(chunk);
    if (++chunk == chunks_->count()) {
      chunk = 0;
      at = 0;
    }
  }
  return std::nullopt;
}

std::shared_ptr<const WatchedContents::Memory> WatchedContents::memory() const {
  {
    MutexLock lock(OpenMutex::instance().mutex);
    if (auto known = memory_.lock()) return known;
  }
  auto fresh = std::make_shared<Memory>(chunks_, pace_);
  for (const Place& place : places_) {
    if (!fresh->hold(place)) return nullptr;
  }
  MutexLock lock(OpenMutex::instance().mutex);
  memory_ = fresh;
  return fresh;
}

ConfirmationPtr WatchedContents::open_confirmation(
    const std::shared_ptr<const Memory>& memory) const {
  MutexLock lock(OpenMutex::instance().mutex);
  open_.erase(std::remove_if(open_.begin(), open_.end(),
                             [](const ConfirmationPtr& one) { return !one->takes_more(); }),
              open_.end());
  // Results share a Confirmation only while they share evidence.
  if (open_.empty() || open_.back()->evidence() != memory) {
    open_.push_back(std::make_shared<Confirmation>(memory));
  }
  return open_.back();
}

std::vector<ConfirmationPtr> WatchedContents::take_open() const {
  MutexLock lock(OpenMutex::instance().mutex);
  return std::exchange(open_, {});
}

WatchedContents::Verdict WatchedContents::judge_run(std::int64_t run_us) const {
  Verdict verdict;
  if (chunks_->size_bytes() == 0) return verdict;
  std::shared_ptr<const Memory> memory = this->memory();
  verdict.is_changed = is_refuted() || memory == nullptr;
  if (verdict.is_changed) {
    pace_->is_refuted.store(true, std::memory_order_relaxed);
    refute_all(take_open());
    return verdict;
  }
  std::int64_t check_ns = pace_->check_ns.load(std::memory_order_relaxed);
  if (check_ns == 0) {
    check_ns = static_cast<std::int64_t>(chunks_->size_bytes()) * 1000 / kBytesPerUs;
    pace_->check_ns.store(check_ns, std::memory_order_relaxed);
  }
  const bool is_quick = check_ns <= std::max(kAlwaysQuickNs, run_us * 1000 / kQuickShare);
  const bool can_wait = !chunks_->has_gaps() && ContentChunks::can_be_read_apart();
  if (is_quick || !can_wait || pace_->has_paused(kPauseShare)) {
    // First, as a run that ends from now on is not covered by this check.
    const auto open = take_open();
    const std::int64_t now = now_ns();
    verdict.is_changed = !memory->holds_for_caller();
    // All bytes were read, so find_change() owes none from before.
    read_until_ns_.store(now, std::memory_order_relaxed);
    for (const auto& one : open) verdict.is_changed ? one->refute() : one->confirm();
    return verdict;
  }
  verdict.confirmation = open_confirmation(memory);
  verdict.evidence = std::move(memory);
  return verdict;
}

void WatchedContents::hand_over_to(const WatchedContents& fresh, Found found) const {
  auto open = take_open();
  if (is_refuted()) return refute_all(open);
  if (found == Found::kOther) return refute_unseen(open);
  if (found == Found::kSame) {
    for (const auto& one : open) one->confirm();
    return;
  }
  MutexLock lock(OpenMutex::instance().mutex);
  fresh.open_ = std::move(open);
}

void ContentChunks::push(Chunk chunk, std::size_t cost) {
  chunk.begin = size_bytes_;
  chunk.cost = static_cast<std::uint32_t>(cost);
  chunks_.push_back(chunk);
  size_bytes_ += cost;
}

void ContentChunks::add_dense(std::size_t index, const std::byte* place, std::size_t size_bytes) {
  Chunk chunk;
  chunk.place = place;
  chunk.size_bytes = static_cast<std::uint32_t>(size_bytes);
  chunk.tensor = static_cast<std::uint32_t>(index);
  chunk.digest = digest_of(chunk);
  push(chunk, size_bytes);
}

void ContentChunks::add(std::size_t index, const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return;
  const std::byte* const place = tensor::const_bytes(tensor);
  if (place == nullptr) return;
  if (!tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) {
    add_strided(index, tensor);
    return;
  }
  for (std::size_t at = 0; at < tensor.nbytes(); at += kChunkBytes) {
    add_dense(index, place + at, std::min(kChunkBytes, tensor.nbytes() - at));
  }
}

void ContentChunks::add_strided(std::size_t index, const at::Tensor& tensor) {
  Strided strided;
  strided.place = tensor::const_bytes(tensor);
  strided.element_bytes = static_cast<std::size_t>(tensor.element_size());
  std::size_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0) continue;  // an expanded dimension has one copy in memory
    strided.sizes.push_back(tensor.size(i));
    strided.strides.push_back(tensor.stride(i));
    elements *= static_cast<std::size_t>(tensor.size(i));
  }
  if (strided.sizes.empty()) {
    strided.sizes.push_back(1);
    strided.strides.push_back(1);
  }
  const std::size_t per_chunk = kChunkBytes / strided.element_bytes;
  strided_.push_back(std::move(strided));
  for (std::size_t first = 0; first < elements; first += per_chunk) {
    const std::size_t count = std::min(per_chunk, elements - first);
    Chunk chunk;
    chunk.size_bytes = static_cast<std::uint32_t>(count * strided_.back().element_bytes);
    chunk.tensor = static_cast<std::uint32_t>(index);
    chunk.strided = static_cast<std::uint32_t>(strided_.size() - 1);
    chunk.first_element = first;
    chunk.digest = digest_of(chunk);
    push(chunk, chunk.size_bytes * kCostOfGaps);
  }
}

void ContentChunks::add_from(const ContentChunks& other, std::size_t index) {
  auto chunk = std::lower_bound(other.chunks_.begin(), other.chunks_.end(), index,
                                [](const Chunk& one, std::size_t i) { return one.tensor < i; });
  if (chunk == other.chunks_.end() || chunk->tensor != index) return;
  const std::size_t strided = strided_.size();
  if (chunk->place == nullptr) strided_.push_back(other.strided_[chunk->strided]);
  for (; chunk != other.chunks_.end() && chunk->tensor == index; ++chunk) {
    Chunk same = *chunk;
    same.strided = static_cast<std::uint32_t>(strided);
    push(same, chunk->cost);
  }
}

std::size_t ContentChunks::chunk_at(std::size_t byte) const {
  const auto after =
      std::upper_bound(chunks_.begin(), chunks_.end(), byte,
                       [](std::size_t at, const Chunk& one) { return at < one.begin; });
  return static_cast<std::size_t>(after - chunks_.begin()) - 1;
}

// Copies row by row along the last dimension.
void ContentChunks::gather(const Strided& from, std::size_t first, std::size_t count,
                           std::byte* to) {
  const auto row_elements = static_cast<std::size_t>(from.sizes.back());
  const std::size_t size = from.element_bytes;
  const std::size_t step = static_cast<std::size_t>(from.strides.back()) * size;
  while (count > 0) {
    const std::size_t in_row = first % row_elements;
    std::size_t row = first / row_elements;
    std::size_t offset = 0;
    for (std::size_t i = from.sizes.size() - 1; i-- > 0;) {
      const auto extent = static_cast<std::size_t>(from.sizes[i]);
      offset += row % extent * static_cast<std::size_t>(from.strides[i]);
      row /= extent;
    }
    const std::byte* at = from.place + offset * size + in_row * step;
    const std::size_t taken = std::min(count, row_elements - in_row);
    if (step == size) {
      std::memcpy(to, at, taken * size);
      to += taken * size;
    } else {
      for (std::size_t i = 0; i < taken; ++i, at += step, to += size) std::memcpy(to, at, size);
    }
    first += taken;
    count -= taken;
  }
}

std::uint64_t ContentChunks::digest_of(const Chunk& chunk) const {
  if (chunk.place != nullptr) return xxh3_64(chunk.place, chunk.size_bytes);
  std::array<std::byte, kChunkBytes> bytes;
  const Strided& from = strided_[chunk.strided];
  gather(from, chunk.first_element, chunk.size_bytes / from.element_bytes, bytes.data());
  return xxh3_64(bytes.data(), chunk.size_bytes);
}

bool ContentChunks::matches(std::size_t chunk) const {
  return digest_of(chunks_[chunk]) == chunks_[chunk].digest;
}

bool ContentChunks::all_match() const {
  return std::all_of(chunks_.begin(), chunks_.end(),
                     [this](const Chunk& chunk) { return digest_of(chunk) == chunk.digest; });
}

bool ContentChunks::all_match_apart() const {
  std::array<std::byte, kChunkBytes> bytes;
  return std::all_of(chunks_.begin(), chunks_.end(), [&bytes](const Chunk& chunk) {
    return copy_own_memory(chunk.place, chunk.size_bytes, bytes.data()) &&
           xxh3_64(bytes.data(), chunk.size_bytes) == chunk.digest;
  });
}

bool ContentChunks::can_be_read_apart() {
  static const bool can = [] {
    std::byte from{1};
    std::byte to{0};
    return copy_own_memory(&from, 1, &to) && to == from;
  }();
  return can;
}

}  // namespace modcache::module
