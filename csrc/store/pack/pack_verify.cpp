// SPDX-License-Identifier: Apache-2.0
//
// Reading everything in a pack.
#include <utility>

#include "store/pack/pack.h"
#include "store/pack/pack_reader.h"

namespace modcache::store {
namespace {

Finding finding_of(Finding::Kind kind, std::string what) {
  Finding finding;
  finding.kind = kind;
  finding.what = std::move(what);
  return finding;
}

class PackVerifying {
 public:
  PackVerifying(const PackReader& pack, const VerifyOptions& options)
      : pack_(pack), options_(options) {
    found_.segments = 1;
    found_.entries = static_cast<std::int64_t>(pack.footer().entries);
    progress_.entries = found_.entries;
  }

  Result<Verification> run() {
    auto offsets = pack_.offsets();
    if (!offsets.is_ok()) return offsets.status();
    for (std::int64_t i = 0; i < offsets.value().broken_pages; ++i) {
      add(finding_of(Finding::Kind::kDatabaseBroken, "a page of the table is damaged"));
    }
    for (const std::uint64_t offset : offsets.value().all) {
      const Status status = look_at(offset);
      if (!status.is_ok()) return status;
    }
    return std::move(found_);
  }

 private:
  // A failure is that of the file, not of the record.
  Status look_at(std::uint64_t offset) {
    auto record = pack_.record_at(offset);
    if (record.status().code() == StatusCode::kIoError) return record.status();
    Finding finding = finding_of(Finding::Kind::kEntryBroken, record.status().message());
    finding.offset = offset;
    if (!record.is_ok()) {
      add(std::move(finding));
      return Status::ok();
    }
    const RecordHead& head = record.value().head;
    auto payload = pack_.payload_of(record.value(), offset);
    if (payload.status().code() == StatusCode::kIoError) return payload.status();
    found_.bytes_read += head.record_size_bytes();
    finding.key = record.value().key;
    finding.context = head.context;
    finding.sequence = head.sequence;
    if (!payload.is_ok()) {
      finding.what = payload.status().message();
      add(std::move(finding));
    } else if (head.kind == RecordKind::kContext) {
      scope_ = record.value().key;
    } else if (head.context == pack_notes_context().digest) {
      ++found_.notes;
    } else {
      look_at_value(record.value(), std::move(finding));
    }
    return Status::ok();
  }

  void look_at_value(const PackReader::Record& record, Finding finding) {
    const VerifiedEntry entry{scope_, record.key, record.header, record.head.payload_size_bytes};
    const Status status = options_.check_value ? options_.check_value(entry) : Status::ok();
    if (status.is_ok()) {
      ++found_.whole_entries;
    } else {
      finding.kind = Finding::Kind::kValueRefused;
      finding.what = status.message();
      finding.scope = scope_;
      add(std::move(finding));
    }
    ++progress_.entries_done;
    progress_.bytes_done = found_.bytes_read;
    if (options_.on_progress) options_.on_progress(progress_);
  }

  void add(Finding finding) {
    ++found_.counts[finding.kind];
    ++found_.damage;
    if (found_.findings.size() < options_.most_findings) {
      found_.findings.push_back(std::move(finding));
    }
  }

  const PackReader& pack_;
  const VerifyOptions& options_;
  Verification found_;
  VerifyProgress progress_;
  std::string scope_;  // of the context that was declared last: its entries follow
};

}  // namespace

Result<Verification> verify_pack(fs::FileSystem& file_system, const VerifyOptions& options) {
  auto pack = PackReader::open(file_system, options.directory, ReadVia::kPread);
  if (!pack.is_ok()) return pack.status();
  return PackVerifying(*pack.value(), options).run();
}

}  // namespace modcache::store
