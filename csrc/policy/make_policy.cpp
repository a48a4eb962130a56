// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <memory>
#include <new>

#include "policy/auto.h"
#include "policy/keep.h"
#include "policy/lru.h"
#include "policy/policy.h"
#include "policy/s3fifo.h"
#include "policy/shared_state.h"

namespace modcache::policy {
namespace {

void leave_it(void*) {}

// Returns the given memory, or new memory of zeros, most of whose pages are never touched.
std::shared_ptr<SharedState> state_in(void* given) {
  if (given != nullptr) return {static_cast<SharedState*>(given), leave_it};
  constexpr std::size_t kAlignment = alignof(SharedState);
  void* const bytes = std::calloc(1, sizeof(SharedState) + kAlignment);  // NOLINT: freed below
  if (bytes == nullptr) throw std::bad_alloc();
  const std::shared_ptr<void> owner(bytes, std::free);
  void* aligned = bytes;
  std::size_t size_bytes = sizeof(SharedState) + kAlignment;
  std::align(kAlignment, sizeof(SharedState), aligned, size_bytes);
  return {owner, static_cast<SharedState*>(aligned)};
}

std::unique_ptr<Policy> make_s3fifo(const std::shared_ptr<SharedState>& state) {
  Ghosts ghosts(state->ghosts.data(), state->ghosts.size());
  return std::make_unique<S3Fifo>(state->s3fifo, ghosts, state);
}

}  // namespace

std::unique_ptr<Policy> make_policy(Kind kind, void* shared_state) {
  switch (kind) {
    case Kind::kAuto: return std::make_unique<Auto>(state_in(shared_state));
    case Kind::kLru: return std::make_unique<Lru>();
    case Kind::kS3Fifo: return make_s3fifo(state_in(shared_state));
    case Kind::kKeep: return std::make_unique<Keep>();
  }
  return std::make_unique<Lru>();
}

}  // namespace modcache::policy
