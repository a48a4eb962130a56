// SPDX-License-Identifier: Apache-2.0
#include "module/eager.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "module/tensor_watch.h"
#include "tensor/tree.h"

namespace modcache::module {
namespace {

struct Watched {
  std::shared_ptr<const TensorWatch> tensors;
  std::string digest;
  std::uint64_t refreshes = 0;            // asked for so far
  std::uint64_t refreshes_when_made = 0;  // of these, before `tensors` was made

  bool is_suspect() const { return refreshes != refreshes_when_made; }
};

struct Watches {
  Mutex mutex;
  std::int64_t next MODCACHE_GUARDED_BY(mutex) = 1;
  std::unordered_map<std::int64_t, Watched> by_number MODCACHE_GUARDED_BY(mutex);
};

// Never destroyed: Python forgets its watches while the process exits.
Watches& watches() {
  static Watches* const instance = [] {
    auto* created = new Watches;
    hold_across_fork(created->mutex);
    return created;
  }();
  return *instance;
}

Watched get(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  TORCH_CHECK(found != all.by_number.end(), "modcache: there is no watch ", watch);
  return found->second;
}

std::string digest_of(const TensorWatch& tensors) {
  Xxh3Hasher hasher;
  hasher.add(static_cast<std::uint64_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) hasher.add(tensors.digest(i).bytes());
  return hasher.digest().hex();
}

}  // namespace

std::int64_t new_watch() {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  all.by_number.emplace(all.next, Watched{});
  return all.next++;
}

void forget_watch(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  all.by_number.erase(watch);
}

void refresh_watch(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  if (found != all.by_number.end()) ++found->second.refreshes;
}

std::shared_ptr<const WatchedContents> contents_of_watch(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  if (found == all.by_number.end() || found->second.tensors == nullptr) return nullptr;
  return found->second.tensors->contents();
}

bool still_has_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors,
                      const std::string& digest) {
  Watched known;
  {
    Watches& all = watches();
    MutexLock lock(all.mutex);
    const auto found = all.by_number.find(watch);
    if (found == all.by_number.end()) return false;
    known = found->second;
  }
  return known.tensors != nullptr && !known.is_suspect() && known.digest == digest &&
         known.tensors->compare(tensors) == TensorWatch::Change::kNone;
}

namespace {

// What is known of these tensors under the watch, renewed where something may have changed.
Watched up_to_date(std::int64_t watch, const std::vector<at::Tensor>& tensors) {
  Watched known = get(watch);
  const bool may_lend = known.tensors != nullptr && !known.is_suspect();
  if (may_lend && known.tensors->compare(tensors) == TensorWatch::Change::kNone) return known;
  for (const at::Tensor& tensor : tensors) {
    const char* why = why_not_hashable(tensor);
    TORCH_CHECK(why == nullptr, "modcache: a tensor that is ", why, " cannot be hashed");
  }
  Watched fresh = known;
  fresh.tensors = std::make_shared<const TensorWatch>(tensors, TensorWatch::Hashing::kContents,
                                                      may_lend ? known.tensors.get() : nullptr);
  fresh.digest = digest_of(*fresh.tensors);
  if (known.tensors != nullptr) known.tensors->hand_over_to(*fresh.tensors);
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  if (found != all.by_number.end()) {
    found->second.tensors = fresh.tensors;
    found->second.digest = fresh.digest;
    found->second.refreshes_when_made = known.refreshes;
  }
  return fresh;
}

}  // namespace

std::string tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors) {
  return up_to_date(watch, tensors).digest;
}

std::vector<std::string> tensor_digests(std::int64_t watch,
                                        const std::vector<at::Tensor>& tensors) {
  const Watched known = up_to_date(watch, tensors);
  std::vector<std::string> digests;
  digests.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    digests.push_back(known.tensors->digest(i).hex());
  }
  return digests;
}

namespace {

// Fills in what the input says. False: the call is run uncached, and counted.
bool prepare(CallParts& parts, const at::IValue& input, std::int64_t params_grad_pattern,
             tensor::Per per, std::int64_t rows) {
  if (is_bypassed_by_mode(rows)) return false;
  if (!read_input(parts, input, per, rows)) return false;
  if (at::GradMode::is_enabled()) {
    parts.grad_pattern = grad_pattern(static_cast<std::uint64_t>(params_grad_pattern), parts.input);
  }
  return true;
}

}  // namespace

Begun begin_eager(CallParts parts, const std::string& key, const at::IValue& input,
                  std::int64_t params_grad_pattern) {
  Begun begun;
  if (!prepare(parts, input, params_grad_pattern, tensor::Per::kCall, 1)) return begun;
  begun.run = c10::make_intrusive<Run>(std::move(parts), key);
  Call& call = begun.run->call;
  if (const auto hit = call.lookup()) {
    const auto& device = call.parts().input.device;
    begun.next = Next::kReturn;
    begun.value = hit->is_lone_tensor()
                      ? at::IValue(hit->hand_out_tensor(device))
                      : tensor::rebuild_tagged(hit->root(), hit->hand_out(device));
    begun.run.reset();
    return begun;
  }
  call.begin_run();
  begun.next = Next::kRunAndFinish;
  return begun;
}

RowsBegun begin_eager_rows(CallParts parts, BatchKeys keys, const at::IValue& input,
                           std::int64_t params_grad_pattern) {
  const auto count = static_cast<std::int64_t>(keys.rows());
  tensor::check_rows(input, count);
  RowsBegun begun;
  if (count == 0) return begun;
  if (!prepare(parts, input, params_grad_pattern, tensor::Per::kRow, count)) return begun;
  begun.run = c10::make_intrusive<RowsRun>(std::move(parts), std::move(keys));
  RowsCall& call = begun.run->call;
  auto rows = call.next_rows();
  begun.next = rows.has_value() ? Next::kRunAndFinish : Next::kReturn;
  if (rows.has_value()) {
    begun.rows = *std::move(rows);
    call.begin_run();
  }
  return begun;
}

TaggedRows eager_rows(RowsCall& call) {
  TaggedRows rows;
  if (const auto together = call.together()) {
    rows.together = tensor::rebuild_tagged(together->root, together->tensors);
    return rows;
  }
  rows.apart.emplace();
  for (const tensor::Flat& row : call.apart()) {
    rows.apart->push_back(tensor::rebuild_tagged(row.root, row.tensors));
  }
  return rows;
}

}  // namespace modcache::module
