// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/victim.h"

#include <algorithm>
#include <utility>

#include "store/segment/segment_scan.h"

namespace modcache::store {
namespace {

// What is read and written at a time; meanwhile nobody else of this process writes.
constexpr std::uint64_t kMostBytesAtOnce = 4 << 20;

}  // namespace

class Victim::Scan final : public SegmentVisitor {
 public:
  explicit Scan(Victim& victim) : victim_(victim) {}

  Status on_context(const RecordHead& head, std::string_view scope,
                    std::string description) override {
    victim_.contexts_.try_emplace(
        head.context, Context{head.context, std::string(scope), std::move(description)});
    return Status::ok();
  }
  Status on_entry(const RecordHead&, std::uint64_t offset, std::string_view) override {
    victim_.entries_.push_back(offset);
    return Status::ok();
  }
  Status on_clear(const RecordHead& head, std::string_view scope,
                  std::string_view key_prefix) override {
    victim_.clears_.push_back({head, std::string(scope), std::string(key_prefix)});
    return Status::ok();
  }
  void on_gap(std::uint64_t) override { victim_.is_damaged_ = true; }

 private:
  Victim& victim_;
};

Result<std::unique_ptr<Victim>> Victim::take(const Directory& directory, std::uint64_t id) {
  fs::FileSystem& file_system = directory.file_system();
  const std::string path = directory.segment_path(id);
  auto file = file_system.open(path, fs::OpenMode::kReadWrite);
  if (!file.is_ok()) return file.status();
  auto is_locked = file.value()->try_lock();
  if (!is_locked.is_ok()) return is_locked.status();
  if (!is_locked.value()) return Status::busy("'" + path + "' is being written");
  auto info = file.value()->info();
  auto named = file_system.info(path);
  if (!info.is_ok()) return info.status();
  if (!named.is_ok()) return named.status();
  if (!named.value().is_same_file(info.value())) return Status::not_found("'" + path + "' is gone");
  std::unique_ptr<Victim> victim(new Victim(id, std::move(file).value()));
  victim->size_bytes_ = info.value().size_bytes;
  // With pread: what is read here is read once, and files may be damaged.
  auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
  if (reader.status().code() == StatusCode::kCorruption) {
    victim->is_damaged_ = true;
    return victim;
  }
  if (!reader.is_ok()) return reader.status();
  victim->reader_ = std::move(reader).value();
  Scan scan(*victim);
  MODCACHE_RETURN_IF_ERROR(scan_segment(*victim->reader_, scan));
  return victim;
}

Result<std::vector<Victim::Record>> Victim::next(std::size_t most) {
  std::vector<Record> records;
  std::uint64_t size_bytes = 0;
  while (next_ < entries_.size() && records.size() < most && size_bytes < kMostBytesAtOnce) {
    Record record;
    const Status status = read_record(entries_[next_], record);
    if (status.code() == StatusCode::kIoError) return status;
    ++next_;
    if (!status.is_ok() || record.context == nullptr) continue;
    size_bytes += record.head.record_size_bytes();
    records.push_back(std::move(record));
  }
  return records;
}

Status Victim::read_record(std::uint64_t offset, Record& record) const {
  char fixed[kRecordFixedSizeBytes];
  MODCACHE_RETURN_IF_ERROR(reader_->read(offset, fixed, sizeof fixed));
  auto peeked = peek_record_head({fixed, sizeof fixed});
  if (!peeked.is_ok()) return peeked.status();
  std::string bytes(peeked.value().head_size_bytes(), '\0');
  MODCACHE_RETURN_IF_ERROR(reader_->read(offset, bytes.data(), bytes.size()));
  auto decoded = decode_record_head(bytes, reader_->salt());
  if (!decoded.is_ok()) return decoded.status();
  record.head = decoded.value().fixed;
  record.offset = offset;
  record.key = decoded.value().key;
  record.header = decoded.value().header;
  const auto context = contexts_.find(record.head.context);
  record.context = context == contexts_.end() ? nullptr : &context->second;
  return Status::ok();
}

Status Victim::read_payload(const Record& record, std::string& payload) const {
  payload.resize(record.head.payload_size_bytes);
  MODCACHE_RETURN_IF_ERROR(
      reader_->read(record.offset + record.head.payload_offset(), payload.data(), payload.size()));
  if (xxh3_64(payload.data(), payload.size()) != record.head.payload_checksum) {
    return Status::corruption("a payload fails its checksum");
  }
  return Status::ok();
}

}  // namespace modcache::store
