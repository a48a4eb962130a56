// SPDX-License-Identifier: Apache-2.0
#include "store/packing/directory_filler.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "policy/policy.h"

namespace modcache::store {

// The reports of the thread that writes.
struct DirectoryFiller::Writing {
  Mutex mutex;
  Status failure MODCACHE_GUARDED_BY(mutex);  // the first failure
  std::int64_t not_kept MODCACHE_GUARDED_BY(mutex) = 0;

  void fail(const Status& status) {
    MutexLock lock(mutex);
    if (failure.is_ok()) failure = status;
  }
  void add_not_kept(std::int64_t entries) {
    MutexLock lock(mutex);
    not_kept += entries;
  }
  Result<FillSummary> judge(FillSummary summary) {
    MutexLock lock(mutex);
    if (!failure.is_ok()) return failure;
    summary.not_kept += not_kept;
    summary.entries -= summary.not_kept;
    return summary;
  }
};

DirectoryFiller::DirectoryFiller(std::shared_ptr<Writing> writing, std::unique_ptr<Store> store)
    : writing_(std::move(writing)), store_(std::move(store)) {}

DirectoryFiller::~DirectoryFiller() = default;

Result<std::unique_ptr<DirectoryFiller>> DirectoryFiller::open(fs::FileSystem& file_system,
                                                               StoreOptions into) {
  // Under this policy nothing that the directory has leaves to make room.
  into.make_policy = [](void*) { return policy::make_policy(policy::Kind::kKeep); };
  auto writing = std::make_shared<Writing>();
  into.on_write_error = [writing](const Status& status, std::int64_t) { writing->fail(status); };
  into.on_not_kept = [writing](std::int64_t entries) { writing->add_not_kept(entries); };
  MODCACHE_ASSIGN_OR_RETURN(auto store, Store::open(file_system, std::move(into)));
  if (store->is_read_only()) {
    return Status::io_error("the directory can only be read: nothing was stored");
  }
  return std::unique_ptr<DirectoryFiller>(
      new DirectoryFiller(std::move(writing), std::move(store)));
}

Status DirectoryFiller::put(const Context& context, std::vector<RowPut> puts) {
  std::vector<std::string_view> keys;
  keys.reserve(puts.size());
  for (const RowPut& put : puts) keys.emplace_back(put.key);
  const FoundEntries found = store_->find_all(context, keys);
  if (!found.index_status().is_ok()) return found.index_status();
  std::vector<RowPut> lacking;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (found.has(i)) {
      ++summary_.there;
      continue;
    }
    ++summary_.entries;
    summary_.payload_bytes += puts[i].payload.size_bytes;
    lacking.push_back(std::move(puts[i]));
  }
  return put_all(context, std::move(lacking));
}

// Tries again while the queue is full.
Status DirectoryFiller::put_all(const Context& context, std::vector<RowPut> puts) {
  while (!puts.empty()) {
    std::vector<Sequence> sequences;
    const Status status = store_->put_all(context, puts, sequences);
    if (status.code() != StatusCode::kBusy) {
      summary_.not_kept += std::count(sequences.begin(), sequences.end(), Sequence{0});
      return status;
    }
    MODCACHE_RETURN_IF_ERROR(store_->flush());
    // The puts without a sequence were not taken.
    std::size_t left = 0;
    for (std::size_t i = 0; i < puts.size(); ++i) {
      if (sequences[i] == 0) puts[left++] = std::move(puts[i]);
    }
    puts.resize(left);
  }
  return Status::ok();
}

Result<FillSummary> DirectoryFiller::finish() {
  MODCACHE_RETURN_IF_ERROR(store_->flush());
  return writing_->judge(summary_);
}

}  // namespace modcache::store
