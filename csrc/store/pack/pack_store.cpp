// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_store.h"

#include <utility>

#include "base/clock.h"
#include "store/directory/notes.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/entry/totals.h"
#include "store/found/batch_lookup.h"
#include "store/found/stored_record.h"

namespace modcache::store {
namespace {

// How often the store checks whether the file is still the one that was opened.
constexpr std::int64_t kPackCheckMs = 100;

}  // namespace

Result<std::unique_ptr<Store>> open_pack(fs::FileSystem& file_system, const StoreOptions& options) {
  // Identify the file before opening it, so that a file which replaces it in between is noticed.
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.info(options.directory));
  MODCACHE_ASSIGN_OR_RETURN(auto pack,
                            PackReader::open(file_system, options.directory, options.read_via));
  return std::unique_ptr<Store>(
      std::make_unique<PackStore>(file_system, options, std::move(pack), file));
}

PackStore::PackStore(fs::FileSystem& file_system, const StoreOptions& options,
                     std::unique_ptr<PackReader> pack, const fs::FileInfo& file)
    : file_system_(file_system),
      path_(options.directory),
      pack_(std::move(pack)),
      file_(file),
      no_directory_(file_system, options.directory),
      readers_(no_directory_, options.read_via) {
  readers_.add(pack_->records());
}

FoundEntries PackStore::find_all(const EntryIds& ids) {
  BatchLookup batch(ids, readers_, locations_);
  batch.take_known(removals());
  const std::vector<std::size_t> missing = batch.missing();
  for (const std::size_t i : missing) {
    auto location = pack_->locate(ids[i]);
    if (location.is_not_found()) continue;
    Status status = location.status();
    if (status.is_ok()) status = batch.take_stored(i, location.value());
    if (!status.is_ok()) {
      batch.fail(i, location.is_ok() ? location.value().sequence : 0, std::move(status));
    }
  }
  return std::move(batch).finish(removals());
}

std::vector<Sequence> PackStore::sequences(const EntryIds& ids) {
  std::vector<Sequence> sequences(ids.size(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto location = pack_->locate(ids[i]);
    if (location.is_ok()) sequences[i] = location.value().sequence;
  }
  return sequences;
}

std::vector<bool> PackStore::are_current(const EntryIds& ids,
                                         const std::vector<Sequence>& sequences) {
  const std::vector<Sequence> current = this->sequences(ids);
  std::vector<bool> answers(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    answers[i] = sequences[i] != 0 && current[i] == sequences[i];
  }
  return answers;
}

Status PackStore::put_all(const Context&, std::span<const Digest128>,
                          const std::vector<RowPut>& puts, std::vector<Sequence>& sequences) {
  sequences.assign(puts.size(), 0);
  return Status::ok();
}

Status PackStore::never_changed() const {
  return Status::invalid_argument("'" + path_ +
                                  "' is a pack, which is never changed; unpack it into a directory "
                                  "('modcache unpack FILE DIR') to change it there");
}

Result<std::int64_t> PackStore::clear(const ClearFilter&) { return never_changed(); }

Result<Evicted> PackStore::evict(std::uint64_t) { return never_changed(); }

Result<std::string> PackStore::find_note(std::string_view about) {
  if (about.empty()) return Status::not_found();
  MODCACHE_ASSIGN_OR_RETURN(auto found, find({pack_notes_context(), about}));
  if (found->payload_size_bytes() > kMaxNoteSizeBytes) {
    return Status::corruption("a note of an impossible size");
  }
  std::string text(found->payload_size_bytes(), '\0');
  MODCACHE_RETURN_IF_ERROR(found->read_payload(text.data()));
  return text;
}

Result<Totals> PackStore::totals() {
  const PackFooter& footer = pack_->footer();
  return Totals{static_cast<std::int64_t>(footer.entries),
                static_cast<std::int64_t>(footer.size_bytes)};
}

bool PackStore::is_attached() const {
  if (!is_attached_.load(std::memory_order_relaxed)) return false;
  const std::int64_t now = steady_now_ms();
  if (now - attached_checked_ms_.load(std::memory_order_relaxed) < kPackCheckMs) return true;
  attached_checked_ms_.store(now, std::memory_order_relaxed);
  const auto info = file_system_.info(path_);
  const bool is_same = info.is_ok() && info.value().is_same_file(file_);
  if (!is_same) is_attached_.store(false, std::memory_order_relaxed);
  return is_same;
}

}  // namespace modcache::store
