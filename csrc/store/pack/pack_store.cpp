// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_store.h"

#include <utility>

#include "base/clock.h"
#include "store/batch_lookup.h"
#include "store/found_entry.h"
#include "store/notes.h"
#include "store/write_queue.h"

namespace modcache::store {
namespace {

// How often it is looked at whether the file is still the one that was opened.
constexpr std::int64_t kAttachedCheckMs = 100;

}  // namespace

Result<std::unique_ptr<Store>> open_pack(fs::FileSystem& file_system, const StoreOptions& options) {
  // Looked at before it is opened: a file that takes its place between the two is found out.
  auto file = file_system.info(options.directory);
  if (!file.is_ok()) return file.status();
  auto pack = PackReader::open(file_system, options.directory, options.read_via);
  if (!pack.is_ok()) return pack.status();
  return std::unique_ptr<Store>(
      std::make_unique<PackStore>(file_system, options, std::move(pack).value(), file.value()));
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

Result<std::unique_ptr<FoundEntry>> PackStore::find(const EntryId& id) {
  const Digest128 address = address_of(id.context.digest, id.key);
  if (const auto known = locations_->find(address, removals())) {
    auto record = read_record(pack_->records(), location_of(*known), id);
    if (record.is_ok()) return stored_entry(std::move(record).value());
    locations_->remove(address);
  }
  auto location = pack_->locate(id);
  if (!location.is_ok()) return location.status();
  auto record = read_record(pack_->records(), location.value(), id);
  if (!record.is_ok()) return record.status();
  locations_->add(address, known_record(location.value().segment, record.value(), *locations_),
                  removals());
  return stored_entry(std::move(record).value());
}

FoundEntries PackStore::find_all(const Context& context,
                                 const std::vector<std::string_view>& keys) {
  BatchLookup batch(context, keys, readers_, locations_);
  batch.take_known(removals());
  const std::vector<std::size_t> missing = batch.missing();
  for (const std::size_t i : missing) {
    auto location = pack_->locate({context, keys[i]});
    if (location.is_not_found()) continue;
    Status status = location.status();
    if (status.is_ok()) status = batch.take_stored(i, location.value());
    if (!status.is_ok()) {
      batch.fail(i, location.is_ok() ? location.value().sequence : 0, std::move(status));
    }
  }
  return std::move(batch).finish(removals());
}

bool PackStore::is_current(const EntryId& id, Sequence sequence) {
  auto location = pack_->locate(id);
  return location.is_ok() && location.value().sequence == sequence;
}

std::vector<bool> PackStore::are_current(const Context& context,
                                         const std::vector<std::string_view>& keys,
                                         const std::vector<Sequence>& sequences) {
  std::vector<bool> answers(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    answers[i] = sequences[i] != 0 && is_current({context, keys[i]}, sequences[i]);
  }
  return answers;
}

Result<Sequence> PackStore::put(Put) { return Sequence{0}; }

Status PackStore::put_all(const Context&, const std::vector<RowPut>& puts,
                          std::vector<Sequence>& sequences) {
  sequences.assign(puts.size(), 0);
  return Status::ok();
}

Status PackStore::drop(const EntryId&, Sequence) { return Status::ok(); }

Status PackStore::never_changed() const {
  return Status::invalid_argument("'" + path_ +
                                  "' is a pack, which is never changed; unpack it into a directory "
                                  "('modcache unpack FILE DIR') to change it there");
}

Result<std::int64_t> PackStore::clear(const ClearFilter&) { return never_changed(); }

Result<Evicted> PackStore::evict(std::uint64_t) { return never_changed(); }

Result<std::string> PackStore::find_note(std::string_view about) {
  if (about.empty()) return Status::not_found();
  auto found = find({pack_notes_context(), about});
  if (!found.is_ok()) return found.status();
  if (found.value()->payload_size_bytes() > kMaxNoteSizeBytes) {
    return Status::corruption("a note of an impossible size");
  }
  std::string text(found.value()->payload_size_bytes(), '\0');
  MODCACHE_RETURN_IF_ERROR(found.value()->read_payload(text.data()));
  return text;
}

Status PackStore::keep_note(std::string_view, std::string_view) { return Status::ok(); }

Result<Totals> PackStore::totals() {
  const PackFooter& footer = pack_->footer();
  return Totals{static_cast<std::int64_t>(footer.entries),
                static_cast<std::int64_t>(footer.size_bytes)};
}

bool PackStore::is_attached() const {
  if (!is_attached_.load(std::memory_order_relaxed)) return false;
  const std::int64_t now = steady_now_ms();
  if (now - attached_checked_ms_.load(std::memory_order_relaxed) < kAttachedCheckMs) return true;
  attached_checked_ms_.store(now, std::memory_order_relaxed);
  const auto info = file_system_.info(path_);
  const bool is_same = info.is_ok() && info.value().is_same_file(file_);
  if (!is_same) is_attached_.store(false, std::memory_order_relaxed);
  return is_same;
}

}  // namespace modcache::store
