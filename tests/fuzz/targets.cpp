// SPDX-License-Identifier: Apache-2.0
#include "fuzz/targets.h"

#include <string>

#include "cache/entry_header.h"
#include "codec/codec.h"
#include "fuzz/memory_file_system.h"
#include "fuzz/sealed.h"
#include "store/control/control_page.h"
#include "store/directory/notes.h"
#include "store/index/wal_peek.h"
#include "store/recovery/recovery.h"
#include "store/segment/record.h"
#include "store/segment/segment_scan.h"
#include "tensor/value_header.h"

namespace modcache::fuzz {
namespace {

// What a scan tells lies within the file.
class Bounds final : public store::SegmentVisitor {
 public:
  explicit Bounds(std::size_t size_bytes) : size_bytes_(size_bytes) {}

  Status on_context(const store::RecordHead& head, std::string_view scope,
                    std::string description) override {
    FUZZ_CHECK(scope.size() == head.key_size_bytes);
    FUZZ_CHECK(description.size() == head.payload_size_bytes);
    return Status::ok();
  }
  Status on_entry(const store::RecordHead& head, std::uint64_t offset,
                  std::string_view key) override {
    FUZZ_CHECK(offset >= last_);
    FUZZ_CHECK(offset + head.payload_offset() + head.payload_size_bytes <= size_bytes_);
    FUZZ_CHECK(key.size() == head.key_size_bytes);
    last_ = offset;
    return Status::ok();
  }
  Status on_clear(const store::RecordHead&, std::string_view, std::string_view) override {
    return Status::ok();
  }

 private:
  const std::size_t size_bytes_;
  std::uint64_t last_ = 0;
};

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"record", run_record},
      {"segment", run_segment},
      {"sealed_segment", run_sealed_segment},
      {"pack", run_pack},
      {"sealed_pack", run_sealed_pack},
      {"index_table", run_index_table},
      {"control", run_control},
      {"note", run_note},
      {"log", run_log},
      {"entry_header", run_entry_header},
      {"value_header", run_value_header},
      {"codec", run_codec},
  };
  return all;
}

void run_record(std::string_view bytes) {
  auto header = store::decode_segment_header(bytes);
  if (header.is_ok()) {
    FUZZ_CHECK(store::encode_segment_header(header.value()).size() <= bytes.size());
  }
  if (bytes.size() < store::kRecordFixedSizeBytes) return;
  for (const std::uint64_t salt : {std::uint64_t{0}, kSalt}) {
    auto decoded = store::decode_record_head(bytes, salt);
    if (!decoded.is_ok()) continue;
    const store::DecodedHead& head = decoded.value();
    const std::string again = store::encode_record_head(head.fixed, head.key, head.header, salt);
    const std::size_t size = head.fixed.head_size_bytes();
    FUZZ_CHECK(bytes.substr(0, size) == std::string_view(again).substr(0, size));
  }
}

void run_segment(std::string_view bytes) {
  auto header = store::decode_segment_header(bytes);
  const std::uint64_t id = header.is_ok() ? header.value().id : kSegment;
  MemoryFileSystem files("/d/segments/" + store::segment_name(id) + ".seg", bytes);
  const store::Directory directory(files, "/d");
  auto reader = store::SegmentReader::open(directory, id, store::ReadVia::kPread);
  if (!reader.is_ok()) return;
  Bounds bounds(bytes.size());
  FUZZ_CHECK(store::scan_segment(*reader.value(), bounds).is_ok());
  FUZZ_CHECK(store::ends_with_a_record(*reader.value()).is_ok());
  auto index = store::rebuild_in_memory(directory);
  // Numbers that no directory gets to may be refused.
  if (!index.is_ok()) return;
  FUZZ_CHECK(index.value()->count_entries().is_ok());
  FUZZ_CHECK(index.value()->last_sequence().is_ok());
}

void run_sealed_segment(std::string_view bytes) { run_segment(sealed(bytes)); }

void run_control(std::string_view bytes) {
  MemoryFileSystem files("/d/control", bytes);
  auto page = store::ControlPage::open(files, "/d/control", store::ReadVia::kPread, false);
  if (!page.is_ok()) return;
  (void)page.value()->removals();
  (void)page.value()->mode_word();
  for (const store::Sequence last : {0ULL, 1000ULL, ~0ULL}) {
    if (!page.value()->is_plausible(last)) continue;
    FUZZ_CHECK(page.value()->committed() < ~0ULL);
  }
}

void run_note(std::string_view bytes) {
  const std::string name = blake2b_128("about").hex();
  if (store::is_whole_note(name, bytes)) {
    FUZZ_CHECK(bytes.find("about") != std::string_view::npos);
  }
  MemoryFileSystem files("/d/notes/" + name, bytes);
  const store::Directory directory(files, "/d");
  FUZZ_CHECK(store::find_note(directory, "about").is_ok() == store::is_whole_note(name, bytes));
}

void run_log(std::string_view bytes) {
  MemoryFileSystem files("/d/log", bytes);
  (void)store::is_wal_read(files, "/d/log");
  (void)store::peek_user_version_in_wal(files, "/d/log");
}

void run_entry_header(std::string_view bytes) {
  std::string_view signature;
  std::string_view value_header;
  if (!cache::unpack_header(bytes, signature, value_header)) return;
  FUZZ_CHECK(cache::pack_header(signature, value_header) == bytes);
}

void run_value_header(std::string_view bytes) {
  auto header = tensor::decode_value_header(bytes);
  if (!header.is_ok()) return;
  const std::string again = tensor::encode_value_header(header.value());
  auto decoded = tensor::decode_value_header(again);
  FUZZ_CHECK(decoded.is_ok());
  FUZZ_CHECK(decoded.value() == header.value());
}

// The first byte is the element's size, the next two the size of the target.
void run_codec(std::string_view bytes) {
  if (bytes.size() < 3) return;
  constexpr std::size_t kSizes[] = {1, 2, 4, 8, 16};
  const std::size_t element = kSizes[static_cast<unsigned char>(bytes[0]) % 5];
  const std::size_t target_size =
      static_cast<unsigned char>(bytes[1]) * 256U + static_cast<unsigned char>(bytes[2]);
  const std::string_view rest = bytes.substr(3);
  std::string target(target_size, '\0');
  (void)codec::decode(codec::Codec::kZstd, element, rest, target.data(), target.size());
  auto encoded = codec::encode(codec::Codec::kZstd, element, rest);
  if (!encoded) return;
  std::string again(rest.size(), '\0');
  FUZZ_CHECK(
      codec::decode(codec::Codec::kZstd, element, *encoded, again.data(), again.size()).is_ok());
  FUZZ_CHECK(again == rest);
}

}  // namespace modcache::fuzz
