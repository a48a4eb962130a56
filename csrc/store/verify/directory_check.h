// SPDX-License-Identifier: Apache-2.0
//
// DirectoryCheck: one pass through a directory, for verify.h. It reports each finding as it comes,
// and changes nothing.
//
// It follows rows to their records, and scans the segments for records, so that a loss on either
// side is noticed. It looks again at what seems broken: a row that changed meanwhile was not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/segment/segment_reader.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_writer.h"
#include "store/verify/database_check.h"
#include "store/verify/verify.h"

namespace modcache::store {

class DirectoryCheck {
 public:
  using Tell = std::function<void(Finding)>;

  // All arguments must outlive this object.
  DirectoryCheck(const Directory& directory, const VerifyOptions& options, Tell tell);

  // Fills in the counts of `verification`. REQUIRES: called once.
  Status run(Verification& verification);
  // Returns whether the findings are void: the database or the control page was replaced, or others
  // began to write where nobody did.
  bool was_replaced() const;

  // The contexts and clears that a repair has to write again.
  const std::vector<Context>& undeclared() const { return undeclared_; }
  const std::vector<Clear>& lost_clears() const { return lost_clears_; }

 private:
  class Records;

  Status check_is_ours();
  // Returns false when there is no folder of segments, and so nothing more to check.
  bool check_kinds();
  void check_control();
  Status check_database();
  Status open_database();
  Status check_rows();
  Status check_row(const DatabaseCheck::Row& row);
  Status look_at(const DatabaseCheck::Row& row);
  Status read_whole(const DatabaseCheck::Row& row, std::string* header = nullptr);
  Status find_lost_row(const std::optional<DatabaseCheck::Row>& row, const RecordHead& head,
                       const RecordPlace& place, std::string_view key);
  Status check_segments();
  void check_segment_file(std::uint64_t id, const Status& status);
  Status check_scanned(const Records& records);
  Status find_undeclared();
  Status find_lost_clears();
  // Looks several times, at moments at which nobody removes segments: with a segment go
  // declarations and clears that another segment has again. Returns false when it was not found
  // each time.
  Result<bool> is_found_again(const std::function<Result<bool>()>& finds);
  Status scan_all(SegmentVisitor& visitor);
  Status check_notes();
  Status check_files();
  // Lets go of retired segments, which would otherwise take space until everything was verified.
  void forget_retired();
  void tell(Finding::Kind kind, std::string file, std::string what);
  void tell_database(std::string what);
  static std::string file_of(std::uint64_t segment);
  static std::uint64_t mark_of(const Digest128& context, std::string_view key, Sequence sequence);
  static std::uint64_t mark_of_place(std::uint64_t segment, std::uint64_t offset);
  // Returns ok when `status` says that the database is broken, after reporting that and closing it.
  Status absorb(const Status& status);

  const Directory& directory_;
  const VerifyOptions& options_;
  const Tell tell_;
  SegmentReaders readers_;
  Verification* result_ = nullptr;
  std::unique_ptr<ControlPage> control_;
  std::unique_ptr<DatabaseCheck> database_;  // null: there is none that can be asked
  std::uint64_t epoch_ = 0;
  Sequence committed_ = 0;  // read before the database is asked
  fs::FileInfo control_file_;
  fs::FileInfo database_file_;
  fs::FileInfo log_file_;
  bool is_shared_ = false;  // commits of others are seen
  std::uint64_t seen_reclaims_ = 0;
  VerifyProgress progress_;
  std::vector<Clear> clears_;
  std::vector<Context> contexts_;
  // Hashes of rows that lead to no intact record of their own: of address and sequence, and of the
  // place.
  std::unordered_set<std::uint64_t> broken_rows_;
  std::vector<Context> undeclared_;
  std::vector<Clear> lost_clears_;
};

}  // namespace modcache::store
