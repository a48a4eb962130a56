// SPDX-License-Identifier: Apache-2.0
#include "store/verify/verify.h"

#include <utility>

#include "store/verify/directory_check.h"

namespace modcache::store {
namespace {

// How often verifying starts again when the database is replaced meanwhile.
constexpr int kMostBeginnings = 3;

}  // namespace

std::string_view finding_name(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kEntryBroken: return "entry-broken";
    case Finding::Kind::kValueRefused: return "value-refused";
    case Finding::Kind::kUnreadable: return "unreadable";
    case Finding::Kind::kSegmentBroken: return "segment-broken";
    case Finding::Kind::kDatabaseBroken: return "database-broken";
    case Finding::Kind::kRowsLost: return "rows-lost";
    case Finding::Kind::kContextUndeclared: return "context-undeclared";
    case Finding::Kind::kClearLost: return "clear-lost";
    case Finding::Kind::kControlBroken: return "control-broken";
    case Finding::Kind::kLockMissing: return "lock-missing";
    case Finding::Kind::kNoteBroken: return "note-broken";
    case Finding::Kind::kForeignFile: return "foreign-file";
    case Finding::Kind::kLeftover: return "leftover";
  }
  return "";
}

void Verification::add(Finding finding, std::size_t most_findings) {
  ++counts[finding.kind];
  if (finding.is_damage) ++damage;
  if (findings.size() < most_findings) findings.push_back(std::move(finding));
}

Result<Verification> verify_directory(fs::FileSystem& file_system, const VerifyOptions& options) {
  const Directory directory = Directory::at(file_system, options.directory);
  for (int i = 1;; ++i) {
    Verification verification;
    DirectoryCheck check(directory, options, [&](Finding finding) {
      verification.add(std::move(finding), options.most_findings);
    });
    MODCACHE_RETURN_IF_ERROR(check.run(verification));
    if (!check.was_replaced() || i == kMostBeginnings) return verification;
  }
}

}  // namespace modcache::store
