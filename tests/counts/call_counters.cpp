// SPDX-License-Identifier: Apache-2.0
//
// libcall_counters.so stands before the C library, by LD_PRELOAD, and counts for each thread what
// it allocates, locks and copies. It is no part of the program that is counted, since the program's
// instructions are counted too.
#include "call_counters.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

// Compilers copy less without a call, so smaller copies would depend on them.
constexpr std::size_t kLargeCopyBytes = 1024;

thread_local CallCounters counters;

// The function that this library stands before. No lock and no allocation is made to find it, as
// both come back here.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}
  Function* get() {
    Function* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
      found_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<Function*> found_{nullptr};
};

void count_allocation(std::size_t bytes) {
  ++counters.allocations;
  counters.allocated_bytes += static_cast<std::int64_t>(bytes);
}

void count_copy(std::size_t bytes) {
  if (bytes >= kLargeCopyBytes) counters.copied_bytes += static_cast<std::int64_t>(bytes);
}

Next<int(pthread_mutex_t*)> next_mutex_lock("pthread_mutex_lock");
Next<int(pthread_mutex_t*)> next_mutex_trylock("pthread_mutex_trylock");
Next<int(pthread_rwlock_t*)> next_rdlock("pthread_rwlock_rdlock");
Next<int(pthread_rwlock_t*)> next_tryrdlock("pthread_rwlock_tryrdlock");
Next<int(pthread_rwlock_t*)> next_wrlock("pthread_rwlock_wrlock");
Next<int(pthread_rwlock_t*)> next_trywrlock("pthread_rwlock_trywrlock");
Next<void*(void*, const void*, std::size_t)> next_memcpy("memcpy");
Next<void*(void*, const void*, std::size_t)> next_memmove("memmove");

}  // namespace

extern "C" {

const CallCounters* counters_of_this_thread() { return &counters; }

// --- Allocations ---------------------------------------------------------------------------------

// dlsym allocates, so these are found without it. C++'s operator new calls malloc or aligned_alloc.
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  count_allocation(bytes);
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) noexcept {
  count_allocation(count * bytes);
  return __libc_calloc(count, bytes);
}

void* realloc(void* memory, std::size_t bytes) noexcept {
  count_allocation(bytes);
  return __libc_realloc(memory, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  count_allocation(bytes);
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return memalign(alignment, bytes);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  void* const allocated = memalign(alignment, bytes);
  if (allocated == nullptr) return ENOMEM;
  *memory = allocated;
  return 0;
}

// --- Locks ---------------------------------------------------------------------------------------

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  ++counters.locks;
  return next_mutex_lock.get()(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  ++counters.locks;
  return next_mutex_trylock.get()(mutex);
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  ++counters.locks;
  return next_rdlock.get()(lock);
}

int pthread_rwlock_tryrdlock(pthread_rwlock_t* lock) noexcept {
  ++counters.locks;
  return next_tryrdlock.get()(lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  ++counters.locks;
  return next_wrlock.get()(lock);
}

int pthread_rwlock_trywrlock(pthread_rwlock_t* lock) noexcept {
  ++counters.locks;
  return next_trywrlock.get()(lock);
}

// --- Copies --------------------------------------------------------------------------------------

void* memcpy(void* to, const void* from, std::size_t bytes) noexcept {
  count_copy(bytes);
  return next_memcpy.get()(to, from, bytes);
}

void* memmove(void* to, const void* from, std::size_t bytes) noexcept {
  count_copy(bytes);
  return next_memmove.get()(to, from, bytes);
}

}  // extern "C"
