// SPDX-License-Identifier: Apache-2.0
#include "module/watch/watch.h"

#include <c10/util/Exception.h>

#include <utility>

#include "base/hash.h"
#include "base/process_wide.h"

namespace modcache::module {
namespace {

// One mutex for all, since it is held across a fork.
struct WatchesMutex : ProcessWide<WatchesMutex> {};

std::string digest_of(const TensorWatch& tensors) {
  Xxh3Hasher hasher;
  hasher.add(static_cast<std::uint64_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) hasher.add(tensors.digest(i).bytes());
  return hasher.digest().hex();
}

}  // namespace

std::string Watch::digest(const std::vector<at::Tensor>& tensors) {
  return up_to_date(tensors).digest;
}

std::vector<std::string> Watch::digests(const std::vector<at::Tensor>& tensors) {
  const Seen known = up_to_date(tensors);
  std::vector<std::string> digests;
  digests.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    digests.push_back(known.tensors->digest(i).hex());
  }
  return digests;
}

bool Watch::still_has(const std::vector<at::Tensor>& tensors, const std::string& digest) const {
  const Seen known = seen();
  return known.tensors != nullptr && !known.is_suspect() && known.digest == digest &&
         known.tensors->is_true_of(tensors);
}

void Watch::refresh() {
  MutexLock lock(WatchesMutex::instance().mutex);
  ++seen_.refreshes;
}

Watch::Seen Watch::seen() const {
  MutexLock lock(WatchesMutex::instance().mutex);
  return seen_;
}

// Returns what is known of these tensors, renewed where something may have changed.
Watch::Seen Watch::up_to_date(const std::vector<at::Tensor>& tensors) {
  Seen known = seen();
  const bool may_lend = known.tensors != nullptr && !known.is_suspect();
  if (may_lend && known.tensors->is_true_of(tensors)) return known;
  for (const at::Tensor& tensor : tensors) {
    const char* why = why_not_hashable(tensor);
    TORCH_CHECK(why == nullptr, "modcache: a tensor that is ", why, " cannot be hashed");
  }
  Seen fresh = known;
  fresh.tensors = std::make_shared<const TensorWatch>(tensors, TensorWatch::Hashing::kContents,
                                                      may_lend ? known.tensors.get() : nullptr);
  fresh.digest = digest_of(*fresh.tensors);
  MutexLock lock(WatchesMutex::instance().mutex);
  seen_.tensors = fresh.tensors;
  seen_.digest = fresh.digest;
  seen_.refreshes_when_made = known.refreshes;
  return fresh;
}

}  // namespace modcache::module
