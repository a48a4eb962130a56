// SPDX-License-Identifier: Apache-2.0
//
// Puts the contents of a pack into a directory.
#include <unordered_map>
#include <utility>

#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/pack/pack_reader.h"
#include "store/packing/directory_filler.h"
#include "store/packing/packing.h"
#include "store/store.h"

namespace modcache::store {
namespace {

constexpr std::size_t kMostOfBatch = 256;
constexpr std::size_t kBatchBytes = 16 << 20;

class Unpacking {
 public:
  Unpacking(const PackReader& pack, DirectoryFiller& filler, const OnPackProgress& on_progress)
      : pack_(pack), filler_(filler), on_progress_(on_progress) {}

  Result<PackSummary> run() {
    MODCACHE_ASSIGN_OR_RETURN(auto offsets, pack_.offsets());
    broken_ += offsets.broken_pages;
    for (const std::uint64_t offset : offsets.all) {
      const Status status = take(offset);
      if (status.code() == StatusCode::kCorruption)
        ++broken_;
      else if (!status.is_ok())
        return status;
    }
    MODCACHE_RETURN_IF_ERROR(put_batch());
    MODCACHE_ASSIGN_OR_RETURN(const FillSummary filled, filler_.finish());
    return summary_of(filled);
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
    if (filler_.store().find_note(about).is_ok()) return Status::ok();
    ++notes_;
    return filler_.store().keep_note(about, text);
  }

  Status put_batch() {
    if (batch_.empty()) return Status::ok();
    std::vector<RowPut> puts;
    puts.reserve(batch_.size());
    for (Taken& taken : batch_) {
      const PackReader::Record& record = taken.record;
      puts.push_back({record.key, record.header, share_bytes(std::move(taken.payload)),
                      record.head.run_us, /*replaces=*/false, record.head.stored_at_us});
    }
    const Context& context = contexts_.at(batch_.front().record.head.context);
    MODCACHE_RETURN_IF_ERROR(filler_.put(context, std::move(puts)));
    batch_.clear();
    batch_bytes_ = 0;
    if (on_progress_) {
      on_progress_(summary_of(filler_.so_far()), static_cast<std::int64_t>(pack_.footer().entries));
    }
    return Status::ok();
  }

  PackSummary summary_of(const FillSummary& filled) const {
    return {filled.entries, filled.there, broken_, filled.not_kept, notes_, filled.payload_bytes};
  }

  const PackReader& pack_;
  DirectoryFiller& filler_;
  const OnPackProgress& on_progress_;
  std::int64_t broken_ = 0;
  std::int64_t notes_ = 0;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
  std::vector<Taken> batch_;  // of one context
  std::size_t batch_bytes_ = 0;
};

}  // namespace

Result<PackSummary> unpack_into(fs::FileSystem& file_system, const std::string& file,
                                StoreOptions into, const OnPackProgress& on_progress) {
  MODCACHE_ASSIGN_OR_RETURN(auto pack, PackReader::open(file_system, file, ReadVia::kPread));
  MODCACHE_ASSIGN_OR_RETURN(auto filler, DirectoryFiller::open(file_system, std::move(into)));
  return Unpacking(*pack, *filler, on_progress).run();
}

}  // namespace modcache::store
