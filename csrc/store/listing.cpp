// SPDX-License-Identifier: Apache-2.0
#include "store/listing.h"

#include <unordered_map>
#include <utility>

#include "store/index/index.h"
#include "store/notes.h"
#include "store/open_directory.h"
#include "store/pack/pack_reader.h"

namespace modcache::store {
namespace {

// Rows that go into one transaction.
constexpr std::size_t kBatchRows = 4096;

// Gives an index the entries of a pack, batch by batch.
class PackGatherer {
 public:
  PackGatherer(const PackReader& pack, Index& index) : pack_(pack), index_(index) {}

  // What is damaged is passed over.
  Status run(std::vector<std::uint64_t>& notes) {
    auto offsets = pack_.offsets();
    if (!offsets.is_ok()) return offsets.status();
    for (const std::uint64_t offset : offsets.value().all) {
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
    return commit();
  }

 private:
  void declare(const PackReader::Record& record, std::uint64_t offset) {
    auto description = pack_.payload_of(record, offset);
    if (!description.is_ok()) return;
    contexts_.emplace(record.head.context,
                      Context{record.head.context, record.key, std::move(description).value()});
  }

  Status add(PackReader::Record record, std::uint64_t offset) {
    const RecordHead& head = record.head;
    const auto context = contexts_.find(head.context);
    if (context == contexts_.end() || record.key.empty()) return Status::ok();
    NewRow row{};
    row.context = &context->second;
    row.location = {pack_.footer().segment_id, offset,        head.header_size_bytes,
                    head.payload_size_bytes,   head.sequence, head.run_us};
    row.stored_at_us = head.stored_at_us;
    rows_.push_back(row);
    keys_.push_back(std::move(record.key));
    return rows_.size() < kBatchRows ? Status::ok() : commit();
  }

  Status commit() {
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].key = keys_[i];
    const Status status = index_.commit(rows_).status();
    rows_.clear();
    keys_.clear();
    return status;
  }

  const PackReader& pack_;
  Index& index_;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
  std::vector<NewRow> rows_;
  std::vector<std::string> keys_;
};

}  // namespace

Listing::Listing(fs::FileSystem& file_system, std::string path)
    : file_system_(file_system), path_(std::move(path)) {}
Listing::~Listing() = default;

Result<std::unique_ptr<Listing>> Listing::open(fs::FileSystem& file_system,
                                               const std::string& directory,
                                               std::int64_t patience_ms) {
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
  options.patience_ms = patience_ms;
  auto opened = open_directory(Directory::at(file_system, directory), options);
  if (!opened.is_ok()) return opened.status();
  listing->index_ = std::move(opened.value().reader);
  return listing;
}

Status Listing::open_pack() {
  auto pack = PackReader::open(file_system_, path_, ReadVia::kPread);
  if (!pack.is_ok()) return pack.status();
  pack_ = std::move(pack).value();
  auto index = Index::create(file_system_, "");
  if (!index.is_ok()) return index.status();
  index_ = std::move(index).value();
  return PackGatherer(*pack_, *index_).run(notes_of_pack_);
}

Result<std::vector<ListedContext>> Listing::contexts() { return index_->contexts(); }

Result<std::vector<ListedEntry>> Listing::page(const ListedContext& context,
                                               std::string_view from_key, std::size_t limit) {
  return index_->page(context.id, from_key, limit);
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
