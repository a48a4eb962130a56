// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_reader.h"

#include <algorithm>
#include <utility>

#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/segment/location.h"

namespace modcache::store {
namespace {

Status about_file(const std::string& path, const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return Status::invalid_argument("'" + path +
                                      "' is a file, but no pack of modcache: " + status.message());
    case StatusCode::kCorruption:
      return Status::corruption("the pack '" + path +
                                "' is damaged or was cut short: " + status.message());
    case StatusCode::kUnsupportedVersion:
      return Status::unsupported_version("the pack '" + path + "': " + status.message());
    default: return status;
  }
}

// Returns whether the file has a pack's footer, which every version has, even if its header is
// damaged.
bool ends_as_a_pack(fs::FileSystem& file_system, const std::string& path) {
  const auto file = file_system.open(path, fs::OpenMode::kReadFollowing);
  if (!file.is_ok()) return false;
  const auto info = file.value()->info();
  if (!info.is_ok() || info.value().size_bytes < kPackFooterSizeBytes) return false;
  std::string bytes(kPackFooterSizeBytes, '\0');
  const std::uint64_t size_bytes = info.value().size_bytes;
  const auto count = file.value()->read_at(size_bytes - bytes.size(), bytes.data(), bytes.size());
  if (!count.is_ok() || count.value() != bytes.size()) return false;
  return decode_pack_footer(bytes, size_bytes).status().code() != StatusCode::kInvalidArgument;
}

bool is_within_pack(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t end) {
  return offset <= end && size_bytes <= end - offset;
}

}  // namespace

Result<std::unique_ptr<PackReader>> PackReader::open(fs::FileSystem& file_system,
                                                     const std::string& path, ReadVia read_via) {
  auto records = SegmentReader::open_sealed(file_system, path, read_via);
  if (records.status().code() == StatusCode::kCorruption) {
    const std::string what = "it does not begin as a pack does";
    return about_file(path, ends_as_a_pack(file_system, path) ? Status::corruption(what)
                                                              : Status::invalid_argument(what));
  }
  if (!records.is_ok()) return about_file(path, records.status());
  const SegmentReader& file = *records.value();
  MODCACHE_ASSIGN_OR_RETURN(auto size_bytes, file.size_bytes());
  // A file that begins as a segment and ends otherwise is a segment, or a pack without its end.
  const Status cut_short = Status::corruption("it has no footer");
  if (size_bytes < kSegmentHeaderSizeBytes + kPackFooterSizeBytes) {
    return about_file(path, cut_short);
  }
  std::string bytes(kPackFooterSizeBytes, '\0');
  MODCACHE_RETURN_IF_ERROR(file.read(size_bytes - bytes.size(), bytes.data(), bytes.size()));
  auto footer = decode_pack_footer(bytes, size_bytes);
  if (footer.status().code() == StatusCode::kInvalidArgument) return about_file(path, cut_short);
  if (!footer.is_ok()) return about_file(path, footer.status());
  if (footer.value().segment_id != file.id()) {
    return about_file(path, Status::corruption("its footer is another pack's"));
  }
  return std::unique_ptr<PackReader>(new PackReader(std::move(records).value(), footer.value()));
}

PackReader::PackReader(std::shared_ptr<SegmentReader> records, const PackFooter& footer)
    : records_(std::move(records)), footer_(footer) {}

// Checks a copy and not the file, whose bytes may change after the check.
Status PackReader::read_page(std::uint64_t number, std::string& page) const {
  page.resize(kPackPageSizeBytes);
  MODCACHE_RETURN_IF_ERROR(
      records_->read(footer_.table_offset + number * kPackPageSizeBytes, page.data(), page.size()));
  return check_pack_page(page, number, records_->salt());
}

Status PackReader::visit_slots(const Digest128& address,
                               const std::function<bool(std::uint64_t offset)>& visit) const {
  const std::uint64_t home = pack_home_of(address, footer_.homes);
  std::string page;
  std::size_t slot = home % kPackSlotsPerPage;
  const std::uint64_t first = home / kPackSlotsPerPage;
  const std::uint64_t end = std::min(footer_.pages, first + kMostPackPagesOfLookup);
  for (std::uint64_t number = first; number < end; ++number) {
    MODCACHE_RETURN_IF_ERROR(read_page(number, page));
    for (; slot < kPackSlotsPerPage; ++slot) {
      const PackSlot found = pack_slot_in(page, slot);
      if (found.offset == 0) return Status::ok();
      if (found.tag == pack_tag_of(address) && visit(found.offset)) return Status::ok();
    }
    slot = 0;
  }
  return Status::ok();
}

Result<Location> PackReader::locate(const EntryId& id) const {
  Result<Location> answer = Status::not_found();
  const Status table = visit_slots(id.address, [&](std::uint64_t offset) {
    auto record = record_at(offset);
    if (!record.is_ok()) {
      answer = record.status();
      return false;
    }
    const RecordHead& head = record.value().head;
    // Another entry may have the same address.
    if (head.kind != RecordKind::kEntry || head.context != id.context.digest ||
        record.value().key != id.key) {
      return false;
    }
    answer = location_of(head, records_->id(), offset);
    return true;
  });
  if (!table.is_ok() && !answer.is_ok()) return table;
  return answer;
}

Result<PackReader::Record> PackReader::record_at(std::uint64_t offset) const {
  const Status no_record = Status::corruption("a pack's table leads to no record");
  const std::uint64_t end = footer_.table_offset;
  if (offset % kRecordAlignmentBytes != 0 || offset < kSegmentHeaderSizeBytes || offset >= end) {
    return no_record;
  }
  MODCACHE_ASSIGN_OR_RETURN(auto record, records_->read_record(offset));
  const RecordHead& head = record.head;
  if (!is_within_pack(offset, head.payload_offset(), end) ||
      !is_within_pack(offset + head.payload_offset(), head.payload_size_bytes, end)) {
    return no_record;
  }
  return record;
}

Result<std::string> PackReader::payload_of(const Record& record, std::uint64_t offset) const {
  std::string payload(record.head.payload_size_bytes, '\0');
  MODCACHE_RETURN_IF_ERROR(records_->read_payload(offset, record.head, payload.data()));
  return payload;
}

Result<PackReader::Offsets> PackReader::offsets() const {
  Offsets offsets;
  std::string page;
  for (std::uint64_t number = 0; number < footer_.pages; ++number) {
    const Status status = read_page(number, page);
    if (status.code() == StatusCode::kCorruption) {
      ++offsets.broken_pages;
      continue;
    }
    if (!status.is_ok()) return status;
    for (std::size_t slot = 0; slot < kPackSlotsPerPage; ++slot) {
      const PackSlot found = pack_slot_in(page, slot);
      if (found.offset != 0) offsets.all.push_back(found.offset);
    }
  }
  std::sort(offsets.all.begin(), offsets.all.end());
  return offsets;
}

}  // namespace modcache::store
