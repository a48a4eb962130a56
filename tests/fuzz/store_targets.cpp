// SPDX-License-Identifier: Apache-2.0
//
// Targets for what is mapped and looked up in place: packs, and the table of the shared index.
#include "fuzz/store_targets.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "fuzz/memory_file_system.h"
#include "fuzz/sealed.h"
#include "fuzz/targets.h"
#include "store/pack/pack_format.h"
#include "store/pack/pack_reader.h"
#include "store/pack/pack_store.h"
#include "store/pack/pack_verify.h"

namespace modcache::fuzz {
namespace {

constexpr const char* kPackPath = "/d/model.pack";

std::uint64_t number_at(std::string_view bytes, std::size_t offset) {
  std::uint64_t number = 0;
  for (std::size_t i = 8; i > 0; --i) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i - 1]);
  }
  return number;
}

// Records, pages of a table, and a footer that fits them.
std::string sealed_pack(std::string_view bytes) {
  const std::string_view tail = bytes.substr(bytes.size() - store::kPackFooterSizeBytes);
  const std::size_t all_pages = (bytes.size() - tail.size()) / store::kPackPageSizeBytes;
  store::PackFooter footer;
  footer.segment_id = kSegment;
  footer.table_offset = number_at(tail, 32);
  if (footer.table_offset % store::kPackPageSizeBytes != 0 || footer.table_offset == 0 ||
      footer.table_offset / store::kPackPageSizeBytes >= all_pages) {
    footer.table_offset = store::kPackPageSizeBytes;
  }
  footer.pages = all_pages - footer.table_offset / store::kPackPageSizeBytes;
  footer.size_bytes = all_pages * store::kPackPageSizeBytes + store::kPackFooterSizeBytes;
  footer.homes = number_at(tail, 48);
  footer.entries = number_at(tail, 56);
  footer.notes = number_at(tail, 64);
  footer.contexts = number_at(tail, 72);
  std::string pack = sealed(bytes.substr(store::kSegmentHeaderSizeBytes,
                                         footer.table_offset - store::kSegmentHeaderSizeBytes));
  for (std::uint64_t number = 0; number < footer.pages; ++number) {
    std::string page(bytes.substr(footer.table_offset + number * store::kPackPageSizeBytes,
                                  store::kPackPageSizeBytes));
    set_checksum(page, 8, number);
    testing::seal(page, 0, page.size(), kSalt);
    pack += page;
  }
  return pack + store::encode_pack_footer(footer);
}

// Whatever the table says, what is found under a key is a record of that key.
void look_up_all(const store::PackReader& pack, store::Store& store) {
  auto offsets = pack.offsets();
  FUZZ_CHECK(offsets.is_ok());
  for (const std::uint64_t offset : offsets.value().all) {
    auto record = pack.record_at(offset);
    if (!record.is_ok()) continue;
    const store::RecordHead& head = record.value().head;
    FUZZ_CHECK(offset + head.payload_offset() + head.payload_size_bytes <=
               pack.footer().table_offset);
    const store::Context context{head.context, "", ""};
    const store::EntryId id{context, record.value().key};
    if (id.key.empty()) continue;
    auto location = pack.locate(id);
    if (location.is_ok()) {
      auto found = pack.record_at(location.value().offset);
      FUZZ_CHECK(found.is_ok());
      FUZZ_CHECK(found.value().key == id.key);
      FUZZ_CHECK(found.value().head.context == head.context);
    }
    for (int times = 0; times < 2; ++times) {  // from the table, and from what is known
      auto found = store.find(id);
      if (!found.is_ok()) continue;
      std::string payload(found.value()->payload_size_bytes(), '\0');
      if (!found.value()->read_payload(payload.data()).is_ok()) continue;
      FUZZ_CHECK(location.is_ok());
      auto stored = pack.record_at(location.value().offset);
      FUZZ_CHECK(pack.payload_of(stored.value(), location.value().offset).value() == payload);
    }
  }
}

}  // namespace

void run_pack(std::string_view bytes) {
  MemoryFileSystem files(kPackPath, bytes);
  store::VerifyOptions verifying;
  verifying.directory = kPackPath;
  auto verified = store::verify_pack(files, verifying);
  auto pack = store::PackReader::open(files, kPackPath, store::ReadVia::kPread);
  FUZZ_CHECK(pack.is_ok() || !verified.is_ok());
  if (!pack.is_ok()) return;
  for (const store::ReadVia read_via : {store::ReadVia::kPread, store::ReadVia::kMmap}) {
    store::StoreOptions options;
    options.directory = kPackPath;
    options.read_via = read_via;
    auto store = store::open_pack(files, options);
    FUZZ_CHECK(store.is_ok());
    look_up_all(*pack.value(), *store.value());
    FUZZ_CHECK(store.value()->totals().is_ok());
    (void)store.value()->find_note("about");
  }
}

void run_sealed_pack(std::string_view bytes) {
  if (bytes.size() < 2 * store::kPackPageSizeBytes + store::kPackFooterSizeBytes) return;
  run_pack(sealed_pack(bytes));
}

void run_index_table(std::string_view bytes) {
  constexpr std::size_t kWholeSizeBytes = 64 << 10;
  std::string file(bytes);
  file.resize(std::max(file.size(), kWholeSizeBytes));
  MemoryFileSystem files("/d/index.map", file);
  auto opened = store::IndexTable::open(files, "/d/index.map", kOwnerOfTable, true);
  if (!opened.is_ok()) return;
  store::IndexTable& table = *opened.value();
  (void)table.entries();
  (void)table.last_sequence();
  store::IndexTable::Slot found;
  table.for_each([](const store::IndexTable::Slot& entry) { FUZZ_CHECK(entry.sequence != 0); });
  table.begin_change();
  for (std::uint64_t tag = 1; tag <= 8; ++tag) {
    const bool is_there = table.find(tag, found) == store::IndexTable::Answer::kFound;
    const store::IndexTable::Slot entry{tag, tag, 64 * tag, 100 + tag, 64, {}};
    if (!table.insert(entry, is_there ? found.sequence : 0)) continue;
    // What was stored last is found, or nothing is said of it; never a miss, never another.
    const auto answer = table.find(tag, found);
    FUZZ_CHECK(answer != store::IndexTable::Answer::kAbsent);
    if (answer != store::IndexTable::Answer::kFound) continue;
    FUZZ_CHECK(found.sequence == entry.sequence);
    FUZZ_CHECK(found.segment == entry.segment);
    FUZZ_CHECK(found.offset == entry.offset);
    table.note_use(tag, entry.sequence, [](policy::Usage) { return policy::Usage(); });
    table.remove(tag, entry.sequence);
    // A damaged table may have the tag twice; whoever finds the other looks whether it is there.
    FUZZ_CHECK(table.find(tag, found) != store::IndexTable::Answer::kFound ||
               found.sequence != entry.sequence);
  }
  table.end_change();
}

}  // namespace modcache::fuzz
