// SPDX-License-Identifier: Apache-2.0
//
// Puts the contents of a pack into a directory.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "policy/policy.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/pack/pack_reader.h"
#include "store/packing/packing.h"
#include "store/store.h"

namespace modcache::store {
namespace {

constexpr std::size_t kMostOfBatch = 256;
constexpr std::size_t kBatchBytes = 16 << 20;

// The reports of the thread that writes.
struct Writing {
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
  Result<PackSummary> judge(PackSummary summary) {
    MutexLock lock(mutex);
    if (!failure.is_ok()) return failure;
    summary.not_kept += not_kept;
    summary.entries -= summary.not_kept;
    return summary;
  }
};

class Unpacking {
 public:
  Unpacking(const PackReader& pack, Store& store, const OnPackProgress& on_progress)
      : pack_(pack), store_(store), on_progress_(on_progress) {}

  Result<PackSummary> run() {
    MODCACHE_ASSIGN_OR_RETURN(auto offsets, pack_.offsets());
    summary_.broken += offsets.broken_pages;
    for (const std::uint64_t offset : offsets.all) {
      const Status status = take(offset);
      if (status.code() == StatusCode::kCorruption)
        ++summary_.broken;
      else if (!status.is_ok())
        return status;
    }
    MODCACHE_RETURN_IF_ERROR(put_batch());
    MODCACHE_RETURN_IF_ERROR(store_.flush());
    return summary_;
  }

 private:
  struct Taken {
    PackReader::Record record;
    std::string payload;
  };

  // kCorruption affects this record alone.
  Status take(std::uint64_t offset) {
    MODCACHE_ASSIGN_OR_RETURN(auto record, pack_.record_at(offset));
    MODCACHE_ASSIGN_OR_RETURN(auto payload, pack_.payload_of(record, offset));
    const RecordHead& head = record.head;
    if (head.kind == RecordKind::kContext) {
      contexts_.emplace(head.context, Context{head.context, record.key, payload});
      return Status::ok();
    }
    if (head.kind != RecordKind::kEntry || record.key.empty()) {
      return Status::corruption("a record that no pack has");
    }
    if (head.context == pack_notes_context().digest) {
      return keep_note(record.key, payload);
    }
    if (contexts_.count(head.context) == 0) {
      return Status::corruption("an entry whose context is damaged");
    }
    const bool is_other = !batch_.empty() && batch_.front().record.head.context != head.context;
    if (is_other || batch_.size() >= kMostOfBatch || batch_bytes_ >= kBatchBytes) {
      MODCACHE_RETURN_IF_ERROR(put_batch());
    }
    batch_bytes_ += payload.size();
    batch_.push_back({std::move(record), std::move(payload)});
    return Status::ok();
  }

  Status keep_note(const std::string& about, const std::string& text) {
    if (store_.find_note(about).is_ok()) return Status::ok();
    ++summary_.notes;
    return store_.keep_note(about, text);
  }

  Status put_batch() {
    if (batch_.empty()) return Status::ok();
    const Context& context = contexts_.at(batch_.front().record.head.context);
    std::vector<std::string_view> keys;
    keys.reserve(batch_.size());
    for (const Taken& taken : batch_) keys.emplace_back(taken.record.key);
    const FoundEntries found = store_.find_all(context, keys);
    if (!found.index_status().is_ok()) return found.index_status();
    std::vector<RowPut> puts;
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      if (found.has(i)) {
        ++summary_.there;
        continue;
      }
      const PackReader::Record& record = batch_[i].record;
      ++summary_.entries;
      summary_.payload_bytes += batch_[i].payload.size();
      puts.push_back({record.key, record.header, share_bytes(std::move(batch_[i].payload)),
                      record.head.run_us, /*replaces=*/false, record.head.stored_at_us});
    }
    MODCACHE_RETURN_IF_ERROR(put_all(context, std::move(puts)));
    batch_.clear();
    batch_bytes_ = 0;
    if (on_progress_) on_progress_(summary_, static_cast<std::int64_t>(pack_.footer().entries));
    return Status::ok();
  }

  // Tries again while the queue is full.
  Status put_all(const Context& context, std::vector<RowPut> puts) {
    while (!puts.empty()) {
      std::vector<Sequence> sequences;
      const Status status = store_.put_all(context, puts, sequences);
      if (status.code() != StatusCode::kBusy) {
        const auto not_kept = std::count(sequences.begin(), sequences.end(), Sequence{0});
        summary_.not_kept += not_kept;
        return status;
      }
      MODCACHE_RETURN_IF_ERROR(store_.flush());
      // The puts without a sequence were not taken.
      std::size_t left = 0;
      for (std::size_t i = 0; i < puts.size(); ++i) {
        if (sequences[i] == 0) puts[left++] = std::move(puts[i]);
      }
      puts.resize(left);
    }
    return Status::ok();
  }

  const PackReader& pack_;
  Store& store_;
  const OnPackProgress& on_progress_;
  PackSummary summary_;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
  std::vector<Taken> batch_;  // of one context
  std::size_t batch_bytes_ = 0;
};

}  // namespace

Result<PackSummary> unpack_into(fs::FileSystem& file_system, const std::string& file,
                                StoreOptions into, const OnPackProgress& on_progress) {
  MODCACHE_ASSIGN_OR_RETURN(auto pack, PackReader::open(file_system, file, ReadVia::kPread));
  // Under this policy nothing that the directory has leaves to make room.
  into.make_policy = [](void*) { return policy::make_policy(policy::Kind::kKeep); };
  auto writing = std::make_shared<Writing>();
  into.on_write_error = [writing](const Status& status, std::int64_t) { writing->fail(status); };
  into.on_not_kept = [writing](std::int64_t entries) { writing->add_not_kept(entries); };
  MODCACHE_ASSIGN_OR_RETURN(auto store, Store::open(file_system, std::move(into)));
  if (store->is_read_only()) {
    return Status::io_error("the directory can only be read: nothing was unpacked");
  }
  auto summary = Unpacking(*pack, *store, on_progress).run();
  return summary.is_ok() ? writing->judge(summary.value()) : summary;
}

}  // namespace modcache::store
