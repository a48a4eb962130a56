// SPDX-License-Identifier: Apache-2.0
#include "tensor/output_buffer.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <utility>

#include "base/process_wide.h"

namespace modcache::tensor {
namespace {

// Below this size the allocator's own free lists are as good.
constexpr std::size_t kLeastBytes = 128 << 10;
constexpr std::size_t kHugePageBytes = 2 << 20;
constexpr std::size_t kPageBytes = 4 << 10;
// Enough for two batches that are being trained on and one that is being made.
constexpr std::size_t kMostFreeBytes = 256 << 20;
constexpr std::size_t kMostFreeBlocks = 8;

struct Block {
  void* data = nullptr;
  std::size_t size_bytes = 0;
};

std::size_t rounded_up(std::size_t size_bytes) {
  const std::size_t unit = size_bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  return (size_bytes + unit - 1) / unit * unit;
}

void unmap(const Block& block) { ::munmap(block.data, block.size_bytes); }

// Returns a block whose `data` is null when there is no memory.
Block map(std::size_t size_bytes) {
  void* data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return {};
  if (size_bytes >= kHugePageBytes) ::madvise(data, size_bytes, MADV_HUGEPAGE);
  return {data, size_bytes};
}

class Pool : public ProcessWide<Pool> {
 public:
  Block take(std::size_t wanted_bytes) {
    const std::size_t size_bytes = rounded_up(wanted_bytes);
    {
      MutexLock lock(mutex);
      for (auto block = free_.begin(); block != free_.end(); ++block) {
        // A block of more than twice the size would waste memory for as long as the batch lives.
        if (block->size_bytes < size_bytes || block->size_bytes / 2 > size_bytes) continue;
        const Block found = *block;
        free_.erase(block);
        free_bytes_ -= found.size_bytes;
        return found;
      }
    }
    return map(size_bytes);
  }

  void give_back(const Block& block) {
    std::list<Block> surplus;
    {
      MutexLock lock(mutex);
      free_.push_front(block);
      free_bytes_ += block.size_bytes;
      while (free_.size() > kMostFreeBlocks || (free_bytes_ > kMostFreeBytes && !free_.empty())) {
        free_bytes_ -= free_.back().size_bytes;
        surplus.splice(surplus.end(), free_, std::prev(free_.end()));
      }
    }
    for (const Block& one : surplus) unmap(one);
  }

 private:
  std::list<Block> free_ MODCACHE_GUARDED_BY(mutex);  // front: given back last
  std::size_t free_bytes_ MODCACHE_GUARDED_BY(mutex) = 0;
};

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  Pool::instance().give_back(*block);
  delete block;
}

std::size_t size_bytes_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::size_t size_bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) size_bytes *= static_cast<std::size_t>(size);
  return size_bytes;
}

// The tensor is resizable, like one in its own memory: if it grows it moves into memory of torch's
// allocator.
at::Tensor tensor_over(c10::DataPtr data, at::IntArrayRef sizes, at::ScalarType dtype) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), size_bytes_of(sizes, dtype),
                       std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

// Small blocks of this thread that were given back. Aligned memory of the allocator's takes longer
// than to copy a small value.
class SmallBlocks {
 public:
  static constexpr std::size_t kMaxBytes = 16 << 10;

  // Null: there is no memory.
  static void* take(std::size_t size_bytes) {
    const std::size_t index = index_of(size_bytes);
    SmallBlocks* const own = of_thread();
    if (own != nullptr && own->counts_[index] > 0) {
      return own->blocks_[index][--own->counts_[index]];
    }
    void* const block = std::aligned_alloc(kAlignment, bytes_of(index) + kAlignment);
    if (block == nullptr) return nullptr;
    *static_cast<std::size_t*>(block) = index;
    return static_cast<std::byte*>(block) + kAlignment;
  }

  static void give_back(void* data) {
    void* const block = static_cast<std::byte*>(data) - kAlignment;
    const std::size_t index = *static_cast<std::size_t*>(block);
    SmallBlocks* const own = of_thread();
    if (own == nullptr || own->counts_[index] == kMaxBlocks) return std::free(block);
    own->blocks_[index][own->counts_[index]++] = data;
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kLeastBytes = 256;
  static constexpr std::size_t kSizes = 7;  // powers of two up to kMaxBytes
  static constexpr std::size_t kMaxBlocks = 4;
  static_assert(kLeastBytes << (kSizes - 1) == kMaxBytes);

  // Frees the blocks of a thread that ends.
  struct End {
    SmallBlocks& own;
    ~End() {
      own.stage_ = Stage::kEnded;
      for (std::size_t index = 0; index < kSizes; ++index) {
        while (own.counts_[index] > 0) {
          std::free(static_cast<std::byte*>(own.blocks_[index][--own.counts_[index]]) - kAlignment);
        }
      }
    }
  };
  enum class Stage : std::uint8_t { kUnused, kInUse, kEnded };

  static std::size_t index_of(std::size_t size_bytes) {
    std::size_t index = 0;
    while (bytes_of(index) < size_bytes) ++index;
    return index;
  }
  static constexpr std::size_t bytes_of(std::size_t index) { return kLeastBytes << index; }

  // Null while the thread ends.
  static SmallBlocks* of_thread() {
    // It has no destructor of its own, for which each use would look whether it is registered.
    static thread_local SmallBlocks own;
    if (own.stage_ == Stage::kUnused) {
      own.stage_ = Stage::kInUse;
      static thread_local const End end{own};
    }
    return own.stage_ == Stage::kInUse ? &own : nullptr;
  }

  Stage stage_ = Stage::kUnused;
  std::array<std::array<void*, kMaxBlocks>, kSizes> blocks_{};
  std::array<std::uint32_t, kSizes> counts_{};
};

void let_go(void* owner) { delete static_cast<std::shared_ptr<std::byte>*>(owner); }

constexpr std::uint64_t kLargeBytes = 1 << 20;
constexpr std::uint64_t kLargeShare = 4;
// At this size, mapping the memory again costs no more than the runs that fill it.
constexpr std::uint64_t kTrimEveryBytes = 128 << 20;

void give_free_heap_back() {
#if defined(__GLIBC__)
  (void)malloc_trim(0);
#endif
}

}  // namespace

at::Tensor output_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::size_t size_bytes = size_bytes_of(sizes, dtype);
  const Block block = size_bytes < kLeastBytes ? Block{} : Pool::instance().take(size_bytes);
  if (size_bytes > 0 && size_bytes <= SmallBlocks::kMaxBytes) {
    if (void* const data = SmallBlocks::take(size_bytes)) {
      return tensor_over(c10::DataPtr(data, data, &SmallBlocks::give_back, at::kCPU), sizes, dtype);
    }
  }
  // Without torch's dispatcher, which takes as long as a small copy.
  if (block.data == nullptr) return at::detail::empty_cpu(sizes, dtype);
  return tensor_over(c10::DataPtr(block.data, new Block(block), &give_back, at::kCPU), sizes,
                     dtype);
}

at::Tensor output_over(std::shared_ptr<std::byte> bytes, at::IntArrayRef sizes,
                       at::ScalarType dtype) {
  void* const data = bytes.get();
  return tensor_over(
      c10::DataPtr(data, new std::shared_ptr<std::byte>(std::move(bytes)), &let_go, at::kCPU),
      sizes, dtype);
}

void note_cut_output(const at::Tensor& result) {
  static std::atomic<std::uint64_t> rests_bytes{0};
  if (!result.device().is_cpu() || !result.has_storage()) return;
  const std::uint64_t all_bytes = result.storage().nbytes();
  if (all_bytes < kLargeBytes || all_bytes < kLargeShare * result.nbytes()) return;
  const std::uint64_t before = rests_bytes.fetch_add(all_bytes, std::memory_order_relaxed);
  if (before + all_bytes < kTrimEveryBytes) return;
  rests_bytes.store(0, std::memory_order_relaxed);
  give_free_heap_back();
}

}  // namespace modcache::tensor
