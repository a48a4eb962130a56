// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/victim.h"

#include <utility>

#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/segment/segment_scan.h"

namespace modcache::store {
namespace {

// This much is read and written at a time; meanwhile nobody else in this process writes.
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
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(path, fs::OpenMode::kReadWrite));
  MODCACHE_ASSIGN_OR_RETURN(auto is_locked, file->try_lock());
  if (!is_locked) return Status::busy("'" + path + "' is being written");
  auto info = file->info();
  auto named = file_system.info(path);
  if (!info.is_ok()) return info.status();
  if (!named.is_ok()) return named.status();
  if (!named.value().is_same_file(info.value())) return Status::not_found("'" + path + "' is gone");
  std::unique_ptr<Victim> victim(new Victim(id, std::move(file)));
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
    const std::uint64_t offset = entries_[next_];
    auto read = reader_->read_record(offset);
    if (read.status().code() == StatusCode::kIoError) return read.status();
    ++next_;
    if (!read.is_ok()) continue;
    SegmentReader::Record& record = read.value();
    const auto context = contexts_.find(record.head.context);
    if (context == contexts_.end()) continue;
    size_bytes += record.head.record_size_bytes();
    records.push_back(
        {record.head, offset, &context->second, std::move(record.key), std::move(record.header)});
  }
  return records;
}

}  // namespace modcache::store
