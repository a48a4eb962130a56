// SPDX-License-Identifier: Apache-2.0
#include "store/pack/pack_verify.h"

#include <utility>

#include "store/entry/options.h"
#include "store/pack/pack_reader.h"

namespace modcache::store {
namespace {

// A pack is one file.
Finding damage_of(Finding::Kind kind, std::string what) {
  return {kind, /*is_damage=*/true, /*file=*/"", std::move(what)};
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
    MODCACHE_ASSIGN_OR_RETURN(auto offsets, pack_.offsets());
    for (std::int64_t i = 0; i < offsets.broken_pages; ++i) {
      add(damage_of(Finding::Kind::kDatabaseBroken, "a page of the table is damaged"));
    }
    for (const std::uint64_t offset : offsets.all) {
      const Status status = look_at(offset);
      if (!status.is_ok()) return status;
    }
    return std::move(found_);
  }

 private:
  // Returns an error of the file; a broken record is a finding.
  Status look_at(std::uint64_t offset) {
    auto record = pack_.record_at(offset);
    if (record.status().code() == StatusCode::kIoError) return record.status();
    Finding finding = damage_of(Finding::Kind::kEntryBroken, record.status().message());
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

  void add(Finding finding) { found_.add(std::move(finding), options_.most_findings); }

  const PackReader& pack_;
  const VerifyOptions& options_;
  Verification found_;
  VerifyProgress progress_;
  std::string scope_;  // of the context that was declared last, whose entries follow
};

}  // namespace

Result<Verification> verify_pack(fs::FileSystem& file_system, const VerifyOptions& options) {
  MODCACHE_ASSIGN_OR_RETURN(auto pack,
                            PackReader::open(file_system, options.directory, ReadVia::kPread));
  return PackVerifying(*pack, options).run();
}

}  // namespace modcache::store
