// SPDX-License-Identifier: Apache-2.0
#include "store/listing/listing.h"

#include <unordered_map>
#include <utility>

#include "store/directory/notes.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/index/index.h"
#include "store/index/listed.h"
#include "store/index/row_batch.h"
#include "store/pack/pack_reader.h"
#include "store/recovery/open_directory.h"

namespace modcache::store {
namespace {

constexpr std::int64_t kPatienceMs = 5000;

// Adds the entries of a pack to an index.
class PackGatherer {
 public:
  PackGatherer(const PackReader& pack, Index& index) : pack_(pack), batch_(index) {}

  // Skips damaged records. `notes` gets the offsets of the notes.
  Status run(std::vector<std::uint64_t>& notes) {
    MODCACHE_ASSIGN_OR_RETURN(auto offsets, pack_.offsets());
    for (const std::uint64_t offset : offsets.all) {
      auto record = pack_.record_at(offset);
      if (!record.is_ok()) continue;
      const RecordHead& head = record.value().head;
      if (head.kind == RecordKind::kContext) {
        declare(record.value(), offset);
      } else if (head.context == pack_notes_context().digest) {
        notes.push_back(offset);
      } else {
        MODCACHE_RETURN_IF_ERROR(add(std::move(record).value(), offset));
      }
    }
    return batch_.commit();
  }

 private:
  void declare(const PackReader::Record& record, std::uint64_t offset) {
    auto description = pack_.payload_of(record, offset);
    if (!description.is_ok()) return;
    contexts_.emplace(record.head.context,
                      Context{record.head.context, record.key, std::move(description).value()});
  }

  Status add(PackReader::Record record, std::uint64_t offset) {
    const auto context = contexts_.find(record.head.context);
    if (context == contexts_.end() || record.key.empty()) return Status::ok();
    return batch_.add(context->second, std::move(record.key), record.head,
                      pack_.footer().segment_id, offset);
  }

  const PackReader& pack_;
  RowBatch batch_;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
};

}  // namespace

Listing::Listing(fs::FileSystem& file_system, std::string path)
    : file_system_(file_system), path_(std::move(path)) {}
Listing::~Listing() = default;

Result<std::unique_ptr<Listing>> Listing::open(fs::FileSystem& file_system,
                                               const std::string& directory) {
  std::unique_ptr<Listing> listing(new Listing(file_system, directory));
  const auto info = file_system.info(directory);
  if (info.is_ok() && !info.value().is_directory) {
    MODCACHE_RETURN_IF_ERROR(listing->open_pack());
    return listing;
  }
  StoreOptions options;
  options.directory = directory;
  options.writable = false;
  options.read_via = ReadVia::kPread;
  options.patience_ms = kPatienceMs;
  MODCACHE_ASSIGN_OR_RETURN(auto opened,
                            open_directory(Directory::at(file_system, directory), options));
  listing->index_ = std::move(opened.reader);
  return listing;
}

Status Listing::open_pack() {
  MODCACHE_ASSIGN_OR_RETURN(pack_, PackReader::open(file_system_, path_, ReadVia::kPread));
  MODCACHE_ASSIGN_OR_RETURN(index_, Index::create(file_system_, ""));
  return PackGatherer(*pack_, *index_).run(notes_of_pack_);
}

Result<std::vector<ListedContext>> Listing::contexts() { return list_contexts(*index_); }

Result<std::vector<ListedEntry>> Listing::page(const ListedContext& context,
                                               std::string_view from_key, std::size_t limit) {
  return list_entries(*index_, context.id, from_key, limit);
}

Status Listing::visit_notes(
    const std::function<void(std::string_view about, std::string_view text)>& visit) {
  if (pack_ == nullptr) return store::visit_notes(Directory::at(file_system_, path_), visit);
  for (const std::uint64_t offset : notes_of_pack_) {
    const auto record = pack_->record_at(offset);
    if (!record.is_ok()) continue;
    const auto text = pack_->payload_of(record.value(), offset);
    if (text.is_ok()) visit(record.value().key, text.value());
  }
  return Status::ok();
}

std::string Listing::key_after(std::string_view key) { return std::string(key) + '\0'; }

}  // namespace modcache::store
