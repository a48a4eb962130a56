// SPDX-License-Identifier: Apache-2.0
//
// DirectoryCheck: one look through a directory, for verify.h. It tells of each finding as it comes,
// and changes nothing.
//
// Rows are followed to their records, and the segments scanned for records, so that neither side
// can lack what the other has unnoticed. What looks broken is asked for again: a row that changed
// meanwhile was not.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "store/control/control_page.h"
#include "store/directory.h"
#include "store/segment/segment_reader.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_writer.h"
#include "store/verify/database_check.h"
#include "store/verify/verify.h"

namespace modcache::store {

class DirectoryCheck {
 public:
  using Tell = std::function<void(Finding)>;

  // All must outlive it.
  DirectoryCheck(const Directory& directory, const VerifyOptions& options, Tell tell);

  // REQUIRES: called once. `verification` gets the counts.
  Status run(Verification& verification);
  // The database or the control page was replaced, or others began to write where nobody did: what
  // was found is void.
  bool was_replaced() const;

  // Contexts and clears to be written again, and what files are misnamed, for whoever mends.
  const std::vector<Context>& undeclared() const { return undeclared_; }
  const std::vector<Clear>& lost_clears() const { return lost_clears_; }

 private:
  class Records;

  Status check_is_ours();
  // False: without the folder of segments there is nothing more to look at.
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
  // Asks again, in moments in which nobody removes segments: with them go declarations and clears
  // that stand elsewhere again. False: it was not found each time.
  Result<bool> is_found_again(const std::function<Result<bool>()>& finds);
  Status check_notes();
  Status check_files();
  // Else what is gone would take room until all was verified.
  void let_go_of_gone();
  void tell(Finding::Kind kind, std::string file, std::string what);
  void tell_database(std::string what);
  static std::string file_of(std::uint64_t segment);
  static std::uint64_t mark_of(const Digest128& context, std::string_view key, Sequence sequence);
  static std::uint64_t mark_of_place(std::uint64_t segment, std::uint64_t offset);
  // Ok where `status` says that the database is broken: then that is told, and it is let go of.
  Status absorb(const Status& status);

  const Directory& directory_;
  const VerifyOptions& options_;
  const Tell tell_;
  SegmentReaders readers_;
  Verification* result_ = nullptr;
  std::unique_ptr<ControlPage> control_;
  std::unique_ptr<DatabaseCheck> database_;  // null: none that can be asked
  std::uint64_t epoch_ = 0;
  Sequence committed_ = 0;  // read before the database is asked
  fs::FileInfo control_file_;
  fs::FileInfo database_file_;
  fs::FileInfo log_file_;
  bool is_shared_ = false;  // others that write are seen
  std::uint64_t seen_reclaims_ = 0;
  VerifyProgress progress_;
  std::vector<Clear> clears_;
  std::vector<Context> contexts_;
  // Hashes of rows that lead to no whole record of theirs: address and sequence, and the place.
  std::unordered_set<std::uint64_t> broken_rows_;
  std::vector<Context> undeclared_;
  std::vector<Clear> lost_clears_;
};

}  // namespace modcache::store
