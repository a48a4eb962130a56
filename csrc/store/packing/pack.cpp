// SPDX-License-Identifier: Apache-2.0
//
// Writes a pack from a directory that others continue to use.

#include "store/directory/notes.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/found/stored_record.h"
#include "store/index/listed.h"
#include "store/listing/listing.h"
#include "store/pack/pack_writer.h"
#include "store/packing/packing.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {
namespace {

constexpr std::size_t kEntriesOfPage = 256;
// How often an entry is looked up again that moves while it is read.
constexpr int kMostLooksAtEntry = 16;
// Notes about files of this machine mean nothing elsewhere, and would reveal its paths.
constexpr std::string_view kAboutFiles = "file ";
// A manifest's note is about a namespace and, on the last line, its scope.
constexpr std::string_view kAboutScope = "manifest ";

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Other notes list scopes, each with its size, or are one scope (FORMAT.md). Comparing whole items
// matters: a text that only contains the scope's letters is about another scope, which may not be
// meant for others' eyes.
bool speaks_of(const std::string& scope, std::string_view about, std::string_view text) {
  if (begins_with(about, kAboutScope)) return ends_with(about, '\n' + scope);
  const std::string item = std::to_string(scope.size()) + ' ' + scope + '\n';
  return text == scope || begins_with(text, item) ||
         text.find('\n' + item) != std::string_view::npos;
}

class Packing {
 public:
  Packing(const Directory& directory, Listing& listing, PackWriter& writer,
          const ClearFilter& filter, const OnPackProgress& on_progress)
      : directory_(directory),
        listing_(listing),
        writer_(writer),
        filter_(filter),
        on_progress_(on_progress),
        readers_(directory, ReadVia::kPread) {}

  Result<PackSummary> run() {
    MODCACHE_ASSIGN_OR_RETURN(auto contexts, listing_.contexts());
    for (const ListedContext& context : contexts) {
      if (is_wanted(context)) of_entries_ += context.entries;
    }
    for (const ListedContext& context : contexts) {
      if (is_wanted(context)) MODCACHE_RETURN_IF_ERROR(add_context(context));
    }
    if (summary_.entries == 0 && !filter_.covers_everything()) return summary_;
    MODCACHE_RETURN_IF_ERROR(add_notes());
    MODCACHE_RETURN_IF_ERROR(writer_.finish());
    return summary_;
  }

 private:
  bool is_wanted(const ListedContext& context) const {
    return filter_.scope.empty() || filter_.scope == context.context.scope;
  }

  Status add_context(const ListedContext& context) {
    std::string from = filter_.key_prefix;
    while (true) {
      MODCACHE_ASSIGN_OR_RETURN(auto page, listing_.page(context, from, kEntriesOfPage));
      for (const ListedEntry& entry : page) {
        if (!begins_with(entry.key, filter_.key_prefix)) return Status::ok();
        if (filter_.older_than_us != 0 && entry.stored_at_us >= filter_.older_than_us) continue;
        MODCACHE_RETURN_IF_ERROR(add_entry(context, entry));
      }
      readers_.forget_retired();
      if (on_progress_) on_progress_(summary_, of_entries_);
      if (page.size() < kEntriesOfPage) return Status::ok();
      from = Listing::key_after(page.back().key);
    }
  }

  // An entry that was moved or replaced since it was listed is read at its new location.
  Status add_entry(const ListedContext& context, ListedEntry entry) {
    for (int looks = 0; looks < kMostLooksAtEntry; ++looks) {
      std::string payload;
      auto record = read(context.context, entry, payload);
      if (record.is_ok()) {
        ++summary_.entries;
        summary_.payload_bytes += payload.size();
        return writer_.add_entry(context.context, entry.key, record.value().header, payload,
                                 record.value().head);
      }
      if (record.status().code() != StatusCode::kCorruption) return record.status();
      MODCACHE_ASSIGN_OR_RETURN(auto now, listing_.page(context, entry.key, 1));
      const bool is_gone = now.empty() || now.front().key != entry.key;
      if (is_gone) return Status::ok();
      const ListedEntry& other = now.front();
      if (other.location.is_same_place(entry.location)) break;
      entry = other;
    }
    ++summary_.broken;
    return Status::ok();
  }

  Result<StoredRecord> read(const Context& context, const ListedEntry& entry,
                            std::string& payload) {
    auto reader = readers_.get(entry.location.segment);
    if (reader.is_not_found()) return Status::corruption("a segment is gone");
    if (!reader.is_ok()) return reader.status();
    auto record = read_record(reader.value(), entry.location, {context, entry.key});
    if (!record.is_ok()) return record;
    payload.resize(record.value().head.payload_size_bytes);
    MODCACHE_RETURN_IF_ERROR(read_payload(record.value(), payload.data()));
    return record;
  }

  Status add_notes() {
    Status failure;
    const Status visited =
        visit_notes(directory_, [&](std::string_view about, std::string_view text) {
          if (!failure.is_ok() || begins_with(about, kAboutFiles)) return;
          if (!filter_.scope.empty() && !speaks_of(filter_.scope, about, text)) return;
          ++summary_.notes;
          failure = writer_.add_note(about, text);
        });
    return failure.is_ok() ? visited : failure;
  }

  const Directory& directory_;
  Listing& listing_;
  PackWriter& writer_;
  const ClearFilter& filter_;
  const OnPackProgress& on_progress_;
  SegmentReaders readers_;
  PackSummary summary_;
  std::int64_t of_entries_ = 0;
};

}  // namespace

Result<PackSummary> write_pack(fs::FileSystem& file_system, const std::string& directory,
                               const std::string& file, const ClearFilter& filter,
                               const OnPackProgress& on_progress) {
  MODCACHE_ASSIGN_OR_RETURN(auto listing, Listing::open(file_system, directory));
  MODCACHE_ASSIGN_OR_RETURN(auto writer, PackWriter::create(file_system, file));
  const Directory places = Directory::at(file_system, directory);
  return Packing(places, *listing, *writer, filter, on_progress).run();
}

}  // namespace modcache::store
