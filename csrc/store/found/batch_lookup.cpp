// SPDX-License-Identifier: Apache-2.0
#include "store/found/batch_lookup.h"

#include <algorithm>
#include <utility>

#include "store/entry/entry_id.h"
#include "store/entry/put.h"
#include "store/found/stored_record.h"
#include "store/segment/location.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

constexpr std::size_t kCacheLineBytes = 64;
// Different headers of one batch that are told apart; of more, some are kept twice.
constexpr std::size_t kRecentHeaders = 8;

// The bytes that are prefetched of a record that will be read soon: its head, and the payload of a
// small value.
constexpr std::size_t kPrefetchBytes = 2304;

void prefetch(const std::byte* bytes, std::size_t size_bytes) {
  for (std::size_t i = 0; i < size_bytes; i += kCacheLineBytes) __builtin_prefetch(bytes + i);
}

bool is_within(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t file_size_bytes) {
  return offset <= file_size_bytes && size_bytes <= file_size_bytes - offset;
}

Status cut_short() { return Status::corruption("a segment was cut short"); }

}  // namespace

BatchLookup::BatchLookup(const EntryIds& ids, SegmentReaders& readers,
                         std::shared_ptr<LocationMap> locations)
    : ids_(ids), context_bytes_(ids.context.digest.byte_array()), readers_(readers) {
  found_.locations_ = std::move(locations);
  found_.rows_ = OneOrMany<Row>(ids.size());
  found_.addresses_ = OneOrMany<Digest128>(ids.size());
  std::copy(ids.addresses.begin(), ids.addresses.end(), found_.addresses_.begin());
}

std::vector<std::size_t> BatchLookup::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < found_.rows_.size(); ++i) {
    if (found_.rows_[i].sequence == 0) missing.push_back(i);
  }
  return missing;
}

void BatchLookup::take_queued(std::size_t i, QueuedPutPtr put) {
  Row& row = found_.rows_[i];
  row.payload = put->payload.data;
  row.payload_size_bytes = put->payload.size_bytes;
  row.sequence = put->sequence;
  row.run_us = put->run_us;
  row.stored_at_us = put->stored_at_us;
  row.header = header_index(put->header);
  take_own_part(row, put->own_part.data(), put->own_part.size());
  row.is_queued = true;
  row.is_verified = true;
  found_.kept_.push_back(std::move(put));
}

void BatchLookup::take_known(std::uint64_t removals,
                             const LocationMap::IsStillThere& is_still_there) {
  OneOrMany<Row>& rows = found_.rows_;
  std::vector<std::size_t> known;
  known.reserve(rows.size());
  // Files are opened afterwards: this runs under the map's lock.
  const auto take = [&](std::size_t i, const LocationMap::Visited& record) {
    Row& row = rows[i];
    if (row.sequence != 0) return;
    row.payload_offset = record.offset;
    row.payload_size_bytes = record.payload_size_bytes;
    row.payload_checksum = record.payload_checksum;
    row.sequence = record.sequence;
    row.run_us = record.run_us;
    row.header = header_index(record.header);
    row.segment = segment_index(record.segment);
    row.is_verified = record.payload_is_verified;
    row.own_part_bytes = record.own_part_bytes;
    known.push_back(i);
  };
  found_.locations_->find_all(addresses(), removals, take, is_still_there);
  // A failure shows in the size, which is 0 then; the index is asked, and tells why.
  for (Segment& segment : found_.segments_) (void)open(segment);
  // The sequences are compared in a loop of nothing else: then the processor waits for many records
  // at once, which prefetching them did not bring about.
  OneOrMany<char> is_outdated(known.size());
  for (std::size_t place = 0; place < known.size(); ++place) {
    is_outdated[place] = has_other_sequence(rows[known[place]]) ? 1 : 0;
  }
  for (std::size_t place = 0; place < known.size(); ++place) {
    const std::size_t i = known[place];
    if (is_outdated[place] == 0 && take_if_still_there(rows[i], ids_.keys[i])) continue;
    rows[i] = Row();
    // The place may be another's with the same address, or outdated; the index knows.
    found_.locations_->remove(addresses()[i]);
  }
}

// False when the record's head is not mapped: take_if_still_there() looks at all of it.
bool BatchLookup::has_other_sequence(const Row& row) const {
  const Segment& segment = found_.segments_[row.segment];
  if (segment.mapping == nullptr ||
      !is_within(row.payload_offset, kRecordFixedSizeBytes, segment.size_bytes)) {
    return false;
  }
  const std::byte* head = segment.mapping->data() + row.payload_offset;
  __builtin_prefetch(head + kCacheLineBytes);
  return record_sequence(head) != row.sequence;
}

// Turns a row whose payload_offset is still that of its record into one that can be read.
bool BatchLookup::take_if_still_there(Row& row, std::string_view key) {
  const Segment& segment = found_.segments_[row.segment];
  const std::uint64_t offset = row.payload_offset;
  const std::size_t own_part_ends = kRecordFixedSizeBytes + key.size() + row.own_part_bytes;
  const std::uint64_t payload_begins =
      align_record(own_part_ends + found_.headers_[row.header]->size());
  if (!is_within(offset, payload_begins + row.payload_size_bytes, segment.size_bytes)) return false;
  row.payload_offset = offset + payload_begins;
  if (segment.mapping != nullptr) {
    const std::byte* record = segment.mapping->data() + offset;
    row.payload = record + payload_begins;
    row.stored_at_us = record_stored_at_us(record);
    take_own_part(row, reinterpret_cast<const char*>(record) + own_part_ends - row.own_part_bytes,
                  row.own_part_bytes);
    return is_head_of(record, row.sequence, context_bytes(), key);
  }
  buffer_.clear();
  if (!append(segment, offset, own_part_ends).is_ok()) return false;
  row.stored_at_us = record_stored_at_us(buffer_.data());
  keep_own_part(row, std::string_view(buffer_).substr(own_part_ends - row.own_part_bytes));
  return is_head_of(buffer_.data(), row.sequence, context_bytes(), key);
}

// `part` stays where it is.
void BatchLookup::take_own_part(Row& row, const char* part, std::size_t size_bytes) {
  row.own_part_bytes = static_cast<std::uint8_t>(size_bytes);
  row.own = size_bytes == 0 ? nullptr : part + kOwnPrefixBytes;
}

void BatchLookup::keep_own_part(Row& row, std::string_view part) {
  if (part.empty()) return take_own_part(row, nullptr, 0);
  auto copy = std::make_shared<const std::string>(part);
  take_own_part(row, copy->data(), copy->size());
  found_.kept_.push_back(std::move(copy));
}

// Appends a copy of the bytes to buffer_. REQUIRES: they are within the file.
Status BatchLookup::append(const Segment& segment, std::uint64_t offset, std::size_t size_bytes) {
  if (segment.mapping != nullptr) {
    buffer_.append(reinterpret_cast<const char*>(segment.mapping->data()) + offset, size_bytes);
    return Status::ok();
  }
  const std::size_t begins = buffer_.size();
  buffer_.resize(begins + size_bytes);
  return segment.reader->read(offset, buffer_.data() + begins, size_bytes);
}

// Looks at the file again where it lacks the bytes: it may have grown.
bool BatchLookup::has_bytes(Segment& segment, std::uint64_t offset, std::uint64_t size_bytes) {
  return is_within(offset, size_bytes, segment.size_bytes) ||
         (look_at(segment).is_ok() && is_within(offset, size_bytes, segment.size_bytes));
}

void BatchLookup::expect_stored(std::uint64_t id, std::uint64_t offset) {
  const Segment& segment = found_.segments_[segment_index(id)];
  if (segment.mapping == nullptr || !is_within(offset, kPrefetchBytes, segment.size_bytes)) return;
  prefetch(segment.mapping->data() + offset, kPrefetchBytes);
}

bool BatchLookup::take_at(std::size_t i, std::uint64_t id, std::uint64_t offset,
                          Sequence sequence) {
  const std::uint32_t index = segment_index(id);
  Segment& segment = found_.segments_[index];
  if (!open(segment).is_ok() || !has_bytes(segment, offset, kRecordFixedSizeBytes)) return false;
  buffer_.clear();
  if (!append(segment, offset, kRecordFixedSizeBytes).is_ok()) return false;
  const auto fixed = peek_record_head(buffer_);
  if (!fixed.is_ok() || !check_is_head_of(fixed.value(), sequence, ids_[i]).is_ok()) return false;
  const std::uint64_t size_bytes = fixed.value().head_size_bytes();
  if (!has_bytes(segment, offset, size_bytes) ||
      !append(segment, offset + buffer_.size(), size_bytes - buffer_.size()).is_ok()) {
    return false;
  }
  const auto head = decode_record_head(fixed.value(), buffer_, segment.reader->salt());
  return head.is_ok() && head.value().key == ids_.keys[i] &&
         take_head(i, index, offset, head.value()).is_ok();
}

Status BatchLookup::take_stored(std::size_t i, const Location& location) {
  const EntryId id = ids_[i];
  MODCACHE_ASSIGN_OR_RETURN(auto head_size_bytes, entry_head_size_bytes(location, id));
  const std::uint32_t index = segment_index(location.segment);
  Segment& segment = found_.segments_[index];
  MODCACHE_RETURN_IF_ERROR(open(segment));
  if (!has_bytes(segment, location.offset, head_size_bytes)) return cut_short();
  buffer_.clear();
  MODCACHE_RETURN_IF_ERROR(append(segment, location.offset, head_size_bytes));
  MODCACHE_ASSIGN_OR_RETURN(const auto head,
                            decode_entry_head(buffer_, segment.reader->salt(), location, id));
  return take_head(i, index, location.offset, head);
}

// Takes the record of key i, whose head was read at `offset` and found sound.
Status BatchLookup::take_head(std::size_t i, std::uint32_t index, std::uint64_t offset,
                              const DecodedHead& decoded) {
  const RecordHead& head = decoded.fixed;
  Segment& segment = found_.segments_[index];
  if (!has_bytes(segment, offset, head.payload_offset() + head.payload_size_bytes)) {
    return cut_short();
  }
  const HeaderParts parts = split_header(decoded.header);
  const SharedHeader header = shared(parts.shared);
  Row& row = found_.rows_[i];
  row.payload_offset = offset + head.payload_offset();
  if (segment.mapping != nullptr) {
    row.payload = segment.mapping->data() + row.payload_offset;
    const std::byte* header_begins =
        segment.mapping->data() + offset + kRecordFixedSizeBytes + decoded.key.size();
    take_own_part(row, reinterpret_cast<const char*>(header_begins), parts.own_part.size());
  } else {
    keep_own_part(row, parts.own_part);
  }
  row.payload_size_bytes = head.payload_size_bytes;
  row.payload_checksum = head.payload_checksum;
  row.sequence = head.sequence;
  row.run_us = head.run_us;
  row.stored_at_us = head.stored_at_us;
  row.header = header_index(header);
  row.segment = index;
  new_records_.push_back(
      {addresses()[i], KnownRecord{segment.id, offset, head.sequence, head.run_us,
                                   head.payload_size_bytes, head.payload_checksum, header,
                                   /*payload_is_verified=*/false, row.own_part_bytes}});
  return Status::ok();
}

std::uint32_t BatchLookup::segment_index(std::uint64_t id) {
  std::vector<Segment>& segments = found_.segments_;
  std::uint32_t& hint = segment_hints_[id % segment_hints_.size()];
  if (hint < segments.size() && segments[hint].id == id) return hint;
  const auto known = std::find_if(segments.begin(), segments.end(),
                                  [id](const Segment& segment) { return segment.id == id; });
  hint = static_cast<std::uint32_t>(known - segments.begin());
  if (known == segments.end()) segments.push_back(Segment{id, nullptr, nullptr, 0});
  return hint;
}

Status BatchLookup::open(Segment& segment) {
  if (segment.reader != nullptr) return Status::ok();
  auto reader = readers_.get(segment.id);
  if (reader.is_not_found()) return Status::corruption("a segment is gone");
  if (!reader.is_ok()) return reader.status();
  segment.reader = std::move(reader).value();
  const Status status = look_at(segment);
  if (!status.is_ok()) segment.reader = nullptr;
  return status;
}

Status BatchLookup::look_at(Segment& segment) {
  MODCACHE_ASSIGN_OR_RETURN(auto view, segment.reader->view());
  if (segment.mapping != nullptr && segment.mapping != view.mapping) {
    found_.kept_.push_back(std::move(segment.mapping));
  }
  segment.mapping = std::move(view.mapping);
  segment.size_bytes = view.size_bytes;
  return Status::ok();
}

std::uint32_t BatchLookup::header_index(const SharedHeader& header) {
  std::vector<SharedHeader>& headers = found_.headers_;
  const std::size_t oldest = headers.size() > kRecentHeaders ? headers.size() - kRecentHeaders : 0;
  for (std::size_t end = headers.size(); end > oldest; --end) {
    if (headers[end - 1] == header) return static_cast<std::uint32_t>(end - 1);
  }
  headers.push_back(header);
  return static_cast<std::uint32_t>(headers.size() - 1);
}

SharedHeader BatchLookup::shared(std::string_view header) {
  if (!found_.headers_.empty() && *found_.headers_.back() == header) return found_.headers_.back();
  return found_.locations_->intern(header);
}

void BatchLookup::pass_over_older(std::int64_t stored_since_us) {
  for (Row& row : found_.rows_) {
    if (row.sequence != 0 && row.stored_at_us < stored_since_us) row = Row();
  }
}

void BatchLookup::pass_over_outdated(const OutdatedEntries& outdated) {
  for (std::size_t i = 0; i < found_.rows_.size(); ++i) {
    Row& row = found_.rows_[i];
    if (row.sequence != 0 && outdated.covers(addresses()[i], row.sequence)) row = Row();
  }
}

void BatchLookup::fail(std::size_t i, Sequence sequence, Status status) {
  found_.rows_[i] = Row();
  found_.failures_.push_back({i, sequence, std::move(status)});
}

FoundEntries BatchLookup::finish(std::uint64_t removals) && {
  if (!new_records_.empty()) found_.locations_->add_all(new_records_, removals);
  return std::move(found_);
}

}  // namespace modcache::store
