// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_writer.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/pack/pack_reader.h"

namespace modcache::store {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;
// Slots for every two records: more make the table larger, fewer make searches longer.
constexpr std::uint64_t kHomesPerTwoRecords = 3;

std::string path_of_new_pack(const std::string& path) { return path + ".new"; }

std::string folder_of_pack(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status is_being_written(const std::string& path) {
  return Status::busy("'" + path + "' is being written by somebody else");
}

// Removes the remains of a pack whose writer died; an error when somebody is writing it.
Status remove_abandoned(fs::FileSystem& file_system, const std::string& path) {
  auto left = file_system.open(path, fs::OpenMode::kReadWrite);
  if (left.is_not_found()) return Status::ok();
  if (!left.is_ok()) return left.status();
  MODCACHE_ASSIGN_OR_RETURN(auto is_locked, left.value()->try_lock());
  return is_locked ? file_system.remove(path) : is_being_written(path);
}

// Returns ok when nothing, a pack or an empty file is at `path`. Any other file belongs to
// somebody.
Status check_may_be_replaced(fs::FileSystem& file_system, const std::string& path) {
  const auto info = file_system.info(path);
  if (info.is_not_found()) return Status::ok();
  if (!info.is_ok()) return info.status();
  if (info.value().is_regular) {
    if (info.value().size_bytes == 0) return Status::ok();
    const auto pack = PackReader::open(file_system, path, ReadVia::kPread);
    if (pack.status().code() != StatusCode::kInvalidArgument) return Status::ok();
  }
  return Status::invalid_argument("'" + path +
                                  "' is there and is no pack, so it is not replaced; name another "
                                  "file, or remove it first");
}

}  // namespace

Result<std::unique_ptr<PackWriter>> PackWriter::create(fs::FileSystem& file_system,
                                                       const std::string& given_path) {
  // Links on the way to the folder are followed. A link in the place of the pack itself is
  // replaced.
  const std::string path = file_system.resolve(folder_of_pack(given_path)) + '/' +
                           given_path.substr(given_path.rfind('/') + 1);
  MODCACHE_RETURN_IF_ERROR(check_may_be_replaced(file_system, given_path));
  const std::string making = path_of_new_pack(path);
  MODCACHE_RETURN_IF_ERROR(remove_abandoned(file_system, making));
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(making, fs::OpenMode::kCreateToShare));
  MODCACHE_ASSIGN_OR_RETURN(auto is_locked, file->try_lock());
  if (!is_locked) return is_being_written(path);
  std::unique_ptr<PackWriter> writer(new PackWriter(file_system, path, std::move(file)));
  MODCACHE_RETURN_IF_ERROR(writer->begin());
  return writer;
}

PackWriter::PackWriter(fs::FileSystem& file_system, std::string path,
                       std::unique_ptr<fs::File> file)
    : file_system_(file_system), path_(std::move(path)), file_(std::move(file)) {}

PackWriter::~PackWriter() {
  if (!is_finished_) (void)file_system_.remove(path_of_new_pack(path_));
}

Status PackWriter::begin() {
  header_.salt = random_number();
  header_.id = random_number();
  header_.created_at_us = now_us();
  footer_.segment_id = header_.id;
  footer_.created_at_us = header_.created_at_us;
  // Random, so that two packs have no sequence in common, and a process never takes an entry of one
  // for an entry of the other.
  next_sequence_ = (random_number() >> 2) + 1;
  return write(encode_segment_header(header_));
}

Status PackWriter::add_entry(const Context& context, std::string_view key, std::string_view header,
                             std::string_view payload, const RecordHead& head) {
  MODCACHE_RETURN_IF_ERROR(declare(context));
  RecordHead own;
  own.context = context.digest;
  own.run_us = head.run_us;
  own.stored_at_us = head.stored_at_us;
  own.payload_checksum = head.payload_checksum;
  placed_.push_back({address_of(context.digest, key), written_bytes_ + buffer_.size()});
  ++footer_.entries;
  return append(own, key, header, payload);
}

Status PackWriter::add_note(std::string_view about, std::string_view text) {
  if (about.empty()) return Status::ok();
  RecordHead head;
  head.stored_at_us = header_.created_at_us;
  head.payload_checksum = xxh3_64(text.data(), text.size());
  MODCACHE_RETURN_IF_ERROR(add_entry(pack_notes_context(), about, "", text, head));
  --footer_.entries;
  ++footer_.notes;
  return Status::ok();
}

// The declaration's slot is found by the empty key, which no entry has.
Status PackWriter::declare(const Context& context) {
  if (!declared_.insert(context.digest).second) return Status::ok();
  RecordHead head;
  head.kind = RecordKind::kContext;
  head.context = context.digest;
  head.stored_at_us = header_.created_at_us;
  head.payload_checksum = xxh3_64(context.description.data(), context.description.size());
  placed_.push_back({address_of(context.digest, ""), written_bytes_ + buffer_.size()});
  ++footer_.contexts;
  return append(head, context.scope, "", context.description);
}

Status PackWriter::append(RecordHead head, std::string_view key, std::string_view header,
                          std::string_view payload) {
  head.sequence = next_sequence_++;
  head.payload_size_bytes = payload.size();
  MODCACHE_RETURN_IF_ERROR(write(encode_record_head(head, key, header, header_.salt)));
  MODCACHE_RETURN_IF_ERROR(write(payload));
  return pad_to(kRecordAlignmentBytes);
}

Status PackWriter::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() <= kBufferBytes) {
    buffer_.append(bytes);
    return Status::ok();
  }
  MODCACHE_RETURN_IF_ERROR(write_out());
  if (bytes.size() <= kBufferBytes) {
    buffer_.append(bytes);
    return Status::ok();
  }
  MODCACHE_RETURN_IF_ERROR(file_->write_at(written_bytes_, {{bytes.data(), bytes.size()}}));
  written_bytes_ += bytes.size();
  return Status::ok();
}

Status PackWriter::write_out() {
  if (buffer_.empty()) return Status::ok();
  MODCACHE_RETURN_IF_ERROR(file_->write_at(written_bytes_, {{buffer_.data(), buffer_.size()}}));
  written_bytes_ += buffer_.size();
  buffer_.clear();
  return Status::ok();
}

Status PackWriter::pad_to(std::uint64_t alignment) {
  const std::uint64_t beyond = (written_bytes_ + buffer_.size()) % alignment;
  return beyond == 0 ? Status::ok() : write(std::string(alignment - beyond, '\0'));
}

// Places the records in the order of their addresses, each in the first free slot from its home on.
Status PackWriter::write_table() {
  const std::uint64_t homes = placed_.size() * kHomesPerTwoRecords / 2 + 1;
  if (homes > kMostPackHomes) {
    return Status::invalid_argument("a pack takes at most " +
                                    std::to_string(kMostPackHomes / kHomesPerTwoRecords * 2) +
                                    " entries");
  }
  MODCACHE_RETURN_IF_ERROR(pad_to(kPackPageSizeBytes));
  footer_.homes = homes;
  footer_.table_offset = written_bytes_ + buffer_.size();
  std::sort(placed_.begin(), placed_.end(), [](const Placed& a, const Placed& b) {
    return a.address.low != b.address.low ? a.address.low < b.address.low : a.offset < b.offset;
  });
  std::vector<PackSlot> slots;  // of page number footer_.pages
  const auto write_page = [&] {
    const std::string page = encode_pack_page(footer_.pages++, slots, header_.salt);
    slots.clear();
    return write(page);
  };
  const auto next = [&] { return footer_.pages * kPackSlotsPerPage + slots.size(); };
  const auto add = [&](const PackSlot& slot) {
    slots.push_back(slot);
    return slots.size() == kPackSlotsPerPage ? write_page() : Status::ok();
  };
  for (const Placed& placed : placed_) {
    const std::uint64_t home = pack_home_of(placed.address, homes);
    while (next() < home) MODCACHE_RETURN_IF_ERROR(add({}));
    if (footer_.pages - home / kPackSlotsPerPage >= kMostPackPagesOfLookup) {
      return Status::invalid_argument("too many keys have the same address, which no chance does");
    }
    MODCACHE_RETURN_IF_ERROR(add({pack_tag_of(placed.address), placed.offset}));
  }
  // Add free slots until every home has one.
  while (next() < homes || !slots.empty()) MODCACHE_RETURN_IF_ERROR(add({}));
  return Status::ok();
}

Status PackWriter::finish() {
  MODCACHE_RETURN_IF_ERROR(write_table());
  footer_.size_bytes = written_bytes_ + buffer_.size() + kPackFooterSizeBytes;
  MODCACHE_RETURN_IF_ERROR(write(encode_pack_footer(footer_)));
  MODCACHE_RETURN_IF_ERROR(write_out());
  MODCACHE_RETURN_IF_ERROR(file_->sync_data());
  MODCACHE_RETURN_IF_ERROR(file_system_.rename(path_of_new_pack(path_), path_));
  is_finished_ = true;
  return file_system_.sync_directory(folder_of_pack(path_));
}

}  // namespace modcache::store
