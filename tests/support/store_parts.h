// SPDX-License-Identifier: Apache-2.0
//
// The parts of the store of a directory, put together as DirectoryStore does, but without its
// threads: a test sees what one part does.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/found/found_entry.h"
#include "store/lookup/lookup.h"
#include "store/queue/outdated_entries.h"
#include "store/queue/write_queue.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/reclaimer.h"
#include "store/recovery/open_directory.h"
#include "store/usage/usage_tracker.h"
#include "store/write/clearer.h"
#include "store/write/index_mirror.h"
#include "store/write/outdated_remover.h"
#include "store/write/writer.h"
#include "support/store_fixture.h"

namespace modcache::testing {

struct StoreParts {
  explicit StoreParts(const store::StoreOptions& options)
      : StoreParts(store::Directory::at(fs::posix_file_system(), options.directory), options) {}
  StoreParts(const store::Directory& directory, const store::StoreOptions& options)
      : attached(directory, options, store::open_directory(directory, options).value()) {
    if (options.make_policy) usage.set_policy(options.make_policy(nullptr));
  }

  // What put() would queue.
  std::shared_ptr<store::QueuedPut> queued(const store::Context& context, const std::string& key,
                                           std::string payload) {
    auto put = std::make_shared<store::QueuedPut>();
    put->context = std::make_shared<const store::Context>(context);
    put->key = key;
    put->address = store::address_of(context.digest, key);
    put->header = std::make_shared<const std::string>("header");
    put->payload = share_bytes(std::move(payload));
    put->clears = attached.control().clears();
    put->sequence = attached.control().next_sequence().value();
    put->begun_at = put->sequence;
    return put;
  }
  void push(const store::QueuedPutPtr& put) {
    EXPECT_TRUE(queue.push(put, store::WriteQueue::Clock::now()).is_ok());
  }
  bool has_row(const store::Context& context, const std::string& key) {
    return attached.reader().find(context.digest, key).is_ok();
  }

  store::AttachedDirectory attached;
  store::DiskBudget budget{attached.directory(), attached.options().disk_budget_bytes};
  store::WriteQueue queue{64 << 20};
  store::OutdatedEntries outdated{100};
  store::UsageTracker usage{attached.index()};
  store::Committer committer{attached, budget.segment_bytes(), budget.most_log_bytes()};
  store::Lookup lookup{attached, committer, queue, outdated, usage};

  store::FoundEntries find_all(const store::Context& context,
                               const std::vector<std::string_view>& keys) {
    const OneOrMany<Digest128> addresses = store::addresses_of(context.digest, keys);
    return lookup.find_all({context, keys, addresses});
  }
  std::vector<bool> are_current(const store::Context& context,
                                const std::vector<std::string_view>& keys,
                                const std::vector<store::Sequence>& sequences) {
    const OneOrMany<Digest128> addresses = store::addresses_of(context.digest, keys);
    return lookup.are_current({context, keys, addresses}, sequences);
  }
  // A single key as the batch of one that a store makes of it.
  Result<std::unique_ptr<store::FoundEntry>> find(const store::EntryId& id) {
    return store::FoundEntry::of_one(lookup.find_all(store::batch_of(id)));
  }
  bool is_current(const store::EntryId& id, store::Sequence sequence) {
    return lookup.are_current(store::batch_of(id), {sequence}).front();
  }
  // The latest put of this id that waits, or null.
  store::QueuedPutPtr find_queued(const store::EntryId& id) {
    const auto found = queue.find_all(store::batch_of(id));
    return found.empty() ? nullptr : found.front();
  }
  store::Reclaimer reclaimer{attached, committer, budget, queue, usage};
  store::IndexMirror mirror{attached, committer, usage};
  store::OutdatedRemover remover{attached, committer, queue, outdated};
  store::Clearer clearer{attached, committer, mirror, queue, budget, reclaimer.room()};
};

class StorePartsTest : public StoreTest {
 protected:
  StorePartsTest() {
    options_.directory = directory_.path();
    options_.patience_ms = 10'000;
  }
  // Stores entries "0", "1" and so on, as another process would.
  void fill(int entries, std::size_t size_bytes = 5) {
    auto store = open_store(options_);
    for (int i = 0; i < entries; ++i) {
      ASSERT_TRUE(put(*store, context_, std::to_string(i), std::string(size_bytes, 'x')).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }

  store::StoreOptions options_;
};

}  // namespace modcache::testing
