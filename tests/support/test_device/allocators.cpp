// SPDX-License-Identifier: Apache-2.0
#include "allocators.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "devices.h"

namespace test_device {
namespace {

std::size_t rounded_up(std::size_t size_bytes) {
  return (size_bytes + Memory::kAlignment - 1) / Memory::kAlignment * Memory::kAlignment;
}

// Memory, and the work that may still use it.
struct Block {
  std::byte* address = nullptr;
  std::size_t size_bytes = 0;
  c10::Stream stream;         // on which it was allocated, in whose order it may be used again
  std::vector<Mark> readers;  // on other streams

  bool is_read() const {
    return !std::all_of(readers.begin(), readers.end(),
                        [](const Mark& one) { return one.is_done(); });
  }
};

// Freed blocks: those that are still read, and those that may be used again.
class FreeBlocks {
 public:
  using Reuse = std::pair<c10::Stream, std::size_t>;

  // Spoils with `spoil` what is no longer read.
  template <typename Spoil>
  void settle(const Spoil& spoil) {
    for (std::size_t i = 0; i < read_.size();) {
      if (read_[i]->is_read()) {
        ++i;
        continue;
      }
      std::unique_ptr<Block> block = std::move(read_[i]);
      read_.erase(read_.begin() + static_cast<std::ptrdiff_t>(i));
      block->readers.clear();
      spoil(*block);
      ready_.push_back(std::move(block));
    }
  }

  void add(std::unique_ptr<Block> block) { read_.push_back(std::move(block)); }

  // Returns the block that was freed last among those of this stream and size; null: there is none.
  std::unique_ptr<Block> take(const c10::Stream& stream, std::size_t size_bytes) {
    const auto found = std::find_if(ready_.rbegin(), ready_.rend(), [&](const auto& block) {
      return block->size_bytes == size_bytes && block->stream == stream;
    });
    if (found == ready_.rend()) return nullptr;
    std::unique_ptr<Block> block = std::move(*found);
    ready_.erase(std::next(found).base());
    return block;
  }

  std::vector<std::unique_ptr<Block>> take_all() { return std::exchange(ready_, {}); }

 private:
  std::vector<std::unique_ptr<Block>> read_;
  std::vector<std::unique_ptr<Block>> ready_;  // back: freed last
};

// --- The device's memory -----------------------------------------------------------------------

class DeviceMemoryAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override {
    const c10::Stream stream = current_stream(current_device());
    if (size_bytes == 0) return {nullptr, stream.device()};
    auto block = taken(stream, rounded_up(size_bytes));
    const std::lock_guard<std::mutex> lock(mutex_);
    held_bytes_.at(index_of(*block)) += block->size_bytes;
    std::byte* const address = block->address;
    return {address, block.release(), &free, stream.device()};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) synchronize(device);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.settle(&spoil);
    for (const auto& block : free_.take_all()) {
      // The work that spoils it must not hit its next owner.
      queue_of(block->stream).wait(queue_of(block->stream).newest());
      memory_of(block->stream.device_index()).give_back(block->address, block->size_bytes);
    }
  }

  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    if (memory.get_deleter() != &free) return;  // null, or of somebody else
    auto& block = *static_cast<Block*>(memory.get_context());
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stream != block.stream) readers_[&block].push_back(stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const std::lock_guard<std::mutex> lock(mutex_);
    stats.allocated_bytes[0].current =
        static_cast<std::int64_t>(held_bytes_.at(static_cast<std::size_t>(device)));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

  static DeviceMemoryAllocator& instance() {
    static auto& one = *new DeviceMemoryAllocator;
    return one;
  }

 private:
  static std::size_t index_of(const Block& block) {
    return static_cast<std::size_t>(block.stream.device_index());
  }

  static void spoil(const Block& block) {
    std::byte* const own = own_address(block.address);
    queue_of(block.stream)
        .enqueue([own, size = block.size_bytes] { std::memset(own, kSpoiled, size); },
                 WorkQueue::Start::kAtOnce);
  }

  std::unique_ptr<Block> taken(const c10::Stream& stream, std::size_t size_bytes) {
    for (const bool is_last_try : {false, true}) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.settle(&spoil);
        if (auto block = free_.take(stream, size_bytes)) return block;
      }
      if (std::byte* address = memory_of(stream.device_index()).take(size_bytes)) {
        return std::make_unique<Block>(Block{address, size_bytes, stream, {}});
      }
      if (!is_last_try) emptyCache({});
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the test device has no room for ", size_bytes,
                     " bytes");
  }

  static void free(void* context) {
    // In a forked child the block is the parent's.
    if (WorkQueue::is_of_this_process()) instance().free_block(static_cast<Block*>(context));
  }

  void free_block(Block* context) {
    std::unique_ptr<Block> block(context);
    const std::lock_guard<std::mutex> lock(mutex_);
    held_bytes_.at(index_of(*block)) -= block->size_bytes;
    const auto readers = readers_.find(context);
    if (readers != readers_.end()) {
      for (const c10::Stream& stream : readers->second) {
        block->readers.push_back(Mark::end_of(stream));
      }
      readers_.erase(readers);
    }
    free_.add(std::move(block));
    free_.settle(&spoil);
  }

  std::mutex mutex_;
  FreeBlocks free_;
  std::map<const Block*, std::vector<c10::Stream>> readers_;  // as record_stream() was told
  std::array<std::size_t, kDevices> held_bytes_{};
};

const c10::AllocatorRegisterer<kType> g_registered_allocator(&DeviceMemoryAllocator::instance());

// --- Page-locked memory ------------------------------------------------------------------------

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override {
    if (size_bytes == 0) return {nullptr, at::kCPU};
    const std::size_t rounded = rounded_up(size_bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.settle(&spoil);
    auto block = free_.take(kAnyStream, rounded);
    if (block == nullptr) {
      auto* address = static_cast<std::byte*>(std::aligned_alloc(Memory::kAlignment, rounded));
      TORCH_CHECK(address != nullptr, "no page-locked memory for ", rounded, " bytes");
      block = std::make_unique<Block>(Block{address, rounded, kAnyStream, {}});
    }
    std::byte* const address = block->address;
    Block* const context = block.release();
    held_[address] = context;
    return {address, context, &free, at::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  bool record_event(void* address, void*, c10::Stream stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* const block = holder_of(address);
    if (block == nullptr) return false;
    block->readers.push_back(Mark::end_of(stream));
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool has(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return holder_of(address) != nullptr;
  }

  static PinnedAllocator& instance() {
    static auto& one = *new PinnedAllocator;
    return one;
  }

 private:
  // The host uses this memory as soon as it is free, whatever streams do.
  inline static const c10::Stream kAnyStream = default_stream(0);

  static void spoil(const Block& block) { std::memset(block.address, kSpoiled, block.size_bytes); }

  static void free(void* context) {
    if (WorkQueue::is_of_this_process()) instance().free_block(static_cast<Block*>(context));
  }

  void free_block(Block* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_.erase(block->address);
    free_.add(std::unique_ptr<Block>(block));
    free_.settle(&spoil);
  }

  // REQUIRES: the mutex is held.
  Block* holder_of(const void* address) const {
    auto next = held_.upper_bound(static_cast<const std::byte*>(address));
    if (next == held_.begin()) return nullptr;
    Block* const block = std::prev(next)->second;
    return address < block->address + block->size_bytes ? block : nullptr;
  }

  std::mutex mutex_;
  FreeBlocks free_;
  std::map<const std::byte*, Block*> held_;
};

const at::HostAllocatorRegistry<kType> g_registered_pinned(&PinnedAllocator::instance());

}  // namespace

void record_use(const c10::DataPtr& memory, const c10::Stream& stream) {
  DeviceMemoryAllocator::instance().recordStream(memory, stream);
}

c10::Allocator* pinned_allocator() { return &PinnedAllocator::instance(); }

bool is_pinned(const void* address) { return PinnedAllocator::instance().has(address); }

void record_pinned_use(const void* address, const c10::Stream& stream) {
  PinnedAllocator::instance().record_event(const_cast<void*>(address), nullptr, stream);
}

}  // namespace test_device
