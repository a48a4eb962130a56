// SPDX-License-Identifier: Apache-2.0
//
// The part of DirectoryCheck that scans the segments.
#include <algorithm>
#include <utility>

#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/entry/scope_filter.h"
#include "store/segment/tombstone.h"
#include "store/verify/directory_check.h"

namespace modcache::store {
namespace {

// Looks for missing declarations and clears, each of which is a scan: so many must agree, out of at
// most so many.
constexpr int kLooksToBelieve = 3;
constexpr int kMostLooksAtRecord = 12;
constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15ULL;

}  // namespace

std::string DirectoryCheck::file_of(std::uint64_t segment) {
  return "segments/" + segment_name(segment) + ".seg";
}

std::uint64_t DirectoryCheck::mark_of(const Digest128& context, std::string_view key,
                                      Sequence sequence) {
  return address_of(context, key).low ^ (sequence * kSpread);
}

std::uint64_t DirectoryCheck::mark_of_place(std::uint64_t segment, std::uint64_t offset) {
  return (segment * kSpread) ^ offset;
}

// The contents of the records of all segments.
class DirectoryCheck::Records final : public SegmentVisitor {
 public:
  explicit Records(DirectoryCheck& check) : check_(check) {}

  void begin(std::uint64_t segment) { segment_ = segment; }

  Status on_context(const RecordHead& head, std::string_view, std::string) override {
    declared_.insert(head.context);
    return Status::ok();
  }
  Status on_entry(const RecordHead& head, std::uint64_t offset, std::string_view key) override {
    if (check_.database_ == nullptr) return Status::ok();
    MODCACHE_ASSIGN_OR_RETURN(auto row, check_.database_->row(head.context, key));
    const bool is_named =
        row && row->location.segment == segment_ && row->location.offset == offset;
    if (!is_named) ++check_.result_->unnamed_records;
    return check_.find_lost_row(row, head, {segment_, offset}, key);
  }
  Status on_clear(const RecordHead& head, std::string_view scope,
                  std::string_view key_prefix) override {
    ++check_.result_->clears;
    // Narrow clears are in segments alone; the database keeps the others.
    if (!clear_of(head, scope, key_prefix).is_narrow()) recorded_clears_.insert(head.sequence);
    return Status::ok();
  }

  bool is_declared(const Context& context) const { return declared_.count(context.digest) != 0; }
  bool is_recorded(const Clear& clear) const { return recorded_clears_.count(clear.sequence) != 0; }

 private:
  DirectoryCheck& check_;
  std::uint64_t segment_ = 0;
  std::unordered_set<Digest128, Digest128Hash> declared_;
  std::unordered_set<Sequence> recorded_clears_;
};

// Reports a row that is broken although the record is intact: the row itself was damaged, or it
// leads to another copy of the record. (A record that no row ever pointed to has no such witness.)
Status DirectoryCheck::find_lost_row(const std::optional<DatabaseCheck::Row>& row,
                                     const RecordHead& head, const RecordPlace& place,
                                     std::string_view key) {
  const bool is_of_this_entry = broken_rows_.count(mark_of(head.context, key, head.sequence)) != 0;
  const bool leads_here = broken_rows_.count(mark_of_place(place.segment, place.offset)) != 0;
  if (!is_of_this_entry && !leads_here) return Status::ok();
  DatabaseCheck::Row found;
  found.context = std::make_shared<const Context>(Context{head.context, "", ""});
  found.key = key;
  found.location = location_of(head, place.segment, place.offset);
  // A record that a correct row leads to is not lost.
  const bool has_own_row = row && row->location.sequence >= head.sequence;
  if (has_own_row && (!is_of_this_entry || row->is_same_place(found))) return Status::ok();
  const Status status = read_whole(found);
  if (status.code() == StatusCode::kIoError) return status;
  if (status.is_ok()) {
    tell(Finding::Kind::kRowsLost, file_of(place.segment),
         "no row leads to the whole record at " + std::to_string(place.offset));
  }
  return Status::ok();
}

Status DirectoryCheck::check_segments() {
  MODCACHE_ASSIGN_OR_RETURN(auto ids, directory_.segments());
  Records records(*this);
  for (const std::uint64_t id : ids) {
    forget_retired();
    auto reader = readers_.get(id);
    if (!reader.is_ok()) {
      check_segment_file(id, reader.status());
      continue;
    }
    ++result_->segments;
    records.begin(id);
    const Status status = scan_segment(*reader.value(), records);
    if (status.code() == StatusCode::kIoError) {
      tell(Finding::Kind::kUnreadable, file_of(id), status.message());
      continue;
    }
    MODCACHE_RETURN_IF_ERROR(status);
    if (options_.on_progress) options_.on_progress(progress_);
  }
  MODCACHE_RETURN_IF_ERROR(check_scanned(records));
  return find_lost_clears();
}

void DirectoryCheck::check_segment_file(std::uint64_t id, const Status& status) {
  if (status.is_not_found() || status.code() == StatusCode::kForeign) return;
  if (status.code() != StatusCode::kCorruption) {
    tell(Finding::Kind::kUnreadable, file_of(id), status.message());
    return;
  }
  auto info = directory_.file_system().info(directory_.segment_path(id));
  if (!info.is_ok()) return;
  // Its creator died before writing a header; rows that lead there are findings of their own.
  const bool is_empty = info.value().size_bytes < kSegmentHeaderSizeBytes;
  tell(is_empty ? Finding::Kind::kLeftover : Finding::Kind::kSegmentBroken, file_of(id),
       status.message());
}

Status DirectoryCheck::check_scanned(const Records& records) {
  if (database_ == nullptr) return Status::ok();
  std::vector<Context> undeclared;
  for (const Context& context : contexts_) {
    if (!records.is_declared(context)) undeclared.push_back(context);
  }
  if (!undeclared.empty()) MODCACHE_RETURN_IF_ERROR(find_undeclared());
  for (const Clear& clear : clears_) {
    if (!records.is_recorded(clear)) lost_clears_.push_back(clear);
  }
  return Status::ok();
}

namespace {

// Another scan of all segments. It finds the contexts that they declare, and the clears that are in
// no segment although a rebuild would need them.
class Rescan final : public SegmentVisitor {
 public:
  explicit Rescan(const std::vector<Clear>& lost) : lost_(lost), is_needed_(lost.size()) {}

  Status on_context(const RecordHead& head, std::string_view scope,
                    std::string description) override {
    contexts_[head.context] = Context{head.context, std::string(scope), std::move(description)};
    return Status::ok();
  }
  Status on_entry(const RecordHead& head, std::uint64_t, std::string_view key) override {
    const auto context = contexts_.find(head.context);
    if (context == contexts_.end()) return Status::ok();
    for (std::size_t i = 0; i < lost_.size(); ++i) {
      if (is_cleared_by(lost_[i], context->second, key, head.sequence)) is_needed_[i] = true;
    }
    return Status::ok();
  }
  Status on_clear(const RecordHead& head, std::string_view scope,
                  std::string_view key_prefix) override {
    if (!clear_of(head, scope, key_prefix).is_narrow()) recorded_.insert(head.sequence);
    return Status::ok();
  }
  bool is_declared(const Context& context) const { return contexts_.count(context.digest) != 0; }
  bool is_lost(std::size_t i) const {
    return is_needed_[i] && recorded_.count(lost_[i].sequence) == 0;
  }

 private:
  const std::vector<Clear>& lost_;
  std::vector<bool> is_needed_;
  std::unordered_set<Sequence> recorded_;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
};

}  // namespace

Status DirectoryCheck::scan_all(SegmentVisitor& visitor) {
  MODCACHE_ASSIGN_OR_RETURN(auto ids, directory_.segments());
  for (const std::uint64_t id : ids) {
    auto reader = readers_.get(id);
    if (reader.is_ok()) MODCACHE_RETURN_IF_ERROR(scan_segment(*reader.value(), visitor));
  }
  return Status::ok();
}

// A folder that changes may be listed without one of its files, so one quiet moment is not enough.
Result<bool> DirectoryCheck::is_found_again(const std::function<Result<bool>()>& finds) {
  const auto removals = [this] {
    return control_ == nullptr ? 0 : control_->clears() + control_->reclaims();
  };
  int quiet = 0;
  for (int i = 0; i < kMostLooksAtRecord && quiet < kLooksToBelieve; ++i) {
    const std::uint64_t before = removals();
    auto is_found = finds();
    if (!is_found.is_ok()) return is_found;
    quiet = removals() == before ? quiet + 1 : 0;
    if (quiet > 0 && !is_found.value()) return false;
  }
  return quiet >= kLooksToBelieve;
}

Status DirectoryCheck::find_undeclared() {
  std::vector<Context> suspected;
  auto is_found = is_found_again([&]() -> Result<bool> {
    MODCACHE_ASSIGN_OR_RETURN(auto contexts, database_->contexts_in_use());
    const std::vector<Clear> no_clears;
    Rescan rescan(no_clears);
    MODCACHE_RETURN_IF_ERROR(scan_all(rescan));
    suspected.clear();
    for (Context& context : contexts) {
      if (!rescan.is_declared(context)) suspected.push_back(std::move(context));
    }
    return !suspected.empty();
  });
  if (!is_found.is_ok()) return is_found.status();
  if (!is_found.value()) return Status::ok();
  for (Context& context : suspected) {
    tell(Finding::Kind::kContextUndeclared, "",
         "no segment declares the context of entries in scope '" + context.scope + "'");
    undeclared_.push_back(std::move(context));
  }
  return Status::ok();
}

Status DirectoryCheck::find_lost_clears() {
  if (lost_clears_.empty() || database_ == nullptr) return Status::ok();
  const std::vector<Clear> suspected = std::exchange(lost_clears_, {});
  std::vector<Clear> lost;
  auto is_found = is_found_again([&]() -> Result<bool> {
    // A clear of everything may have removed them together with their records.
    MODCACHE_ASSIGN_OR_RETURN(auto now, database_->clears());
    Rescan rescan(suspected);
    MODCACHE_RETURN_IF_ERROR(scan_all(rescan));
    lost.clear();
    for (std::size_t i = 0; i < suspected.size(); ++i) {
      const bool is_still_there = std::any_of(now.begin(), now.end(), [&](const Clear& other) {
        return other.sequence == suspected[i].sequence;
      });
      if (rescan.is_lost(i) && is_still_there) lost.push_back(suspected[i]);
    }
    return !lost.empty();
  });
  if (!is_found.is_ok()) return is_found.status();
  if (is_found.value()) lost_clears_ = std::move(lost);
  for (const Clear& clear : lost_clears_) {
    Finding finding{Finding::Kind::kClearLost, /*is_damage=*/true, /*file=*/"",
                    "the record of a clear is gone, and not all that it cleared"};
    finding.scope = ScopeFilter(clear.filter.scope).scope;
    finding.key = clear.filter.key_prefix;
    finding.sequence = clear.sequence;
    tell_(std::move(finding));
  }
  return Status::ok();
}

}  // namespace modcache::store
