// SPDX-License-Identifier: Apache-2.0
//
// Writing a pack from a directory that others go on using.
#include <utility>

#include "store/found_entry.h"
#include "store/listing.h"
#include "store/notes.h"
#include "store/pack/pack.h"
#include "store/pack/pack_writer.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {
namespace {

constexpr std::size_t kEntriesOfPage = 256;
// How often an entry that moves while it is read is looked for again.
constexpr int kMostLooks = 16;
// Notes about files of this machine say nothing elsewhere, and name its paths.
constexpr std::string_view kAboutFiles = "file ";
// A manifest is about a namespace and, on the last line, its scope.
constexpr std::string_view kAboutScope = "manifest ";

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Other notes name scopes in a list, each with its size, or are one scope (FORMAT.md). What only
// holds the name's letters is of another scope, and may not be meant for others' eyes.
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
    auto contexts = listing_.contexts();
    if (!contexts.is_ok()) return contexts.status();
    for (const ListedContext& context : contexts.value()) {
      if (is_wanted(context)) of_entries_ += context.entries;
    }
    for (const ListedContext& context : contexts.value()) {
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
      auto page = listing_.page(context, from, kEntriesOfPage);
      if (!page.is_ok()) return page.status();
      for (const ListedEntry& entry : page.value()) {
        if (!begins_with(entry.key, filter_.key_prefix)) return Status::ok();
        if (filter_.older_than_us != 0 && entry.stored_at_us >= filter_.older_than_us) continue;
        MODCACHE_RETURN_IF_ERROR(add_entry(context, entry));
      }
      readers_.forget_gone();
      if (on_progress_) on_progress_(summary_, of_entries_);
      if (page.value().size() < kEntriesOfPage) return Status::ok();
      from = Listing::key_after(page.value().back().key);
    }
  }

  // What was moved or replaced since it was listed is read where it lies now.
  Status add_entry(const ListedContext& context, ListedEntry entry) {
    for (int looks = 0; looks < kMostLooks; ++looks) {
      std::string payload;
      auto record = read(context.context, entry, payload);
      if (record.is_ok()) {
        ++summary_.entries;
        summary_.payload_bytes += payload.size();
        return writer_.add_entry(context.context, entry.key, record.value().header, payload,
                                 record.value().head);
      }
      if (record.status().code() != StatusCode::kCorruption) return record.status();
      auto now = listing_.page(context, entry.key, 1);
      if (!now.is_ok()) return now.status();
      const bool is_gone = now.value().empty() || now.value().front().key != entry.key;
      if (is_gone) return Status::ok();
      const ListedEntry& other = now.value().front();
      if (other.sequence == entry.sequence && other.segment == entry.segment &&
          other.offset == entry.offset) {
        break;
      }
      entry = other;
    }
    ++summary_.broken;
    return Status::ok();
  }

  Result<StoredRecord> read(const Context& context, const ListedEntry& entry,
                            std::string& payload) {
    auto reader = readers_.get(entry.segment);
    if (reader.is_not_found()) return Status::corruption("a segment is gone");
    if (!reader.is_ok()) return reader.status();
    const Location location{entry.segment,           entry.offset,
                            entry.header_size_bytes, entry.payload_size_bytes,
                            entry.sequence,          entry.run_us};
    auto record = read_record(reader.value(), location, {context, entry.key});
    if (!record.is_ok()) return record;
    auto file_size_bytes = reader.value()->size_bytes();
    if (!file_size_bytes.is_ok()) return file_size_bytes.status();
    const RecordHead& head = record.value().head;
    if (head.payload_size_bytes > file_size_bytes.value()) {
      return Status::corruption("a segment was cut short");
    }
    payload.resize(head.payload_size_bytes);
    MODCACHE_RETURN_IF_ERROR(stored_entry(record.value())->read_payload(payload.data()));
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
  auto listing = Listing::open(file_system, directory);
  if (!listing.is_ok()) return listing.status();
  auto writer = PackWriter::create(file_system, file);
  if (!writer.is_ok()) return writer.status();
  const Directory places = Directory::at(file_system, directory);
  return Packing(places, *listing.value(), *writer.value(), filter, on_progress).run();
}

}  // namespace modcache::store
