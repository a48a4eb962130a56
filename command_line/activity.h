// SPDX-License-Identifier: Apache-2.0
//
// Activity: what happens in a directory between two looks at it. ActivityWatch looks; the rest is
// for who shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "command_line/counted.h"

namespace modcache::command_line {

struct ScopeActivity {
  std::string scope;
  std::string class_name;  // empty where that is not on record
  Counted now;             // since the look before
  Counted total;
};

struct Activity {
  std::string path;
  std::string mode;
  std::size_t processes = 0;  // that count here
  std::int64_t since_us = 0;  // the totals are of this time and later; 0: nothing was counted
  std::int64_t disk_bytes = 0;
  std::int64_t budget_bytes = 0;  // as the environment of this process sets it
  double seconds = 0;             // between the two looks; 0: there was one
  Counted now;
  Counted total;
  std::vector<ScopeActivity> scopes;    // those with most look-ups now first
  std::vector<std::int64_t> looked_up;  // in each of the last intervals, the latest last
  std::string failure;                  // why the last look saw nothing; empty: it did

  double per_second(std::int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }
};

class ActivityWatch {
 public:
  explicit ActivityWatch(std::string path) : path_(std::move(path)) {}

  // Looks again. Reads notes only when a scope appears whose name is not known yet. A failure after
  // the first look is in the activity.
  Result<Activity> look();

 private:
  Result<Activity> look_anew();
  Status name_scopes(Activity& activity);

  const std::string path_;
  std::int64_t looked_at_ms_ = 0;
  Counted total_;
  std::map<std::string, Counted> scopes_;
  ScopeNames names_;
  bool has_names_ = false;
  std::vector<std::int64_t> looked_up_;
  Activity last_;
};

}  // namespace modcache::command_line
