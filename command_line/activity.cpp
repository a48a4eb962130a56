// SPDX-License-Identifier: Apache-2.0
#include "command_line/activity.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "command_line/cache_directory.h"
#include "command_line/changing.h"
#include "command_line/manifest.h"
#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"
#include "store/counters/counter_totals.h"
#include "store/listing/listing.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kMostIntervals = 512;

// Does not read the index, as CacheDirectory does. Fails for a directory of a newer version alone,
// as a damaged one may still be watched.
Result<ScopeNames> names_on_record(const std::string& path) {
  const auto listing = store::Listing::open(fs::posix_file_system(), path);
  if (listing.status().code() == StatusCode::kUnsupportedVersion) return listing.status();
  if (!listing.is_ok()) return ScopeNames{};
  const auto manifests = manifests_in(*listing.value());
  return manifests.is_ok() ? names_of(manifests.value()) : ScopeNames{};
}

}  // namespace

Result<Activity> ActivityWatch::look() {
  auto activity = look_anew();
  if (activity.is_ok()) {
    last_ = activity.value();
  } else if (looked_at_ms_ != 0) {
    last_.failure = activity.status().message();
    last_.now = {};
    for (ScopeActivity& scope : last_.scopes) scope.now = {};
    return last_;
  }
  return activity;
}

Result<Activity> ActivityWatch::look_anew() {
  MODCACHE_RETURN_IF_ERROR(check_is_cache(path_));
  fs::FileSystem& file_system = fs::posix_file_system();
  MODCACHE_ASSIGN_OR_RETURN(const auto totals, store::read_counters(file_system, path_));
  Activity activity;
  const std::int64_t now_ms = steady_now_ms();
  const bool is_first = looked_at_ms_ == 0;
  activity.path = path_;
  activity.seconds = is_first ? 0 : static_cast<double>(now_ms - looked_at_ms_) / 1000;
  looked_at_ms_ = now_ms;
  const auto mode = store::directory_mode(file_system, path_);
  if (mode.is_ok()) activity.mode = store::directory_mode_name(mode.value());
  activity.processes = totals.live_processes;
  activity.since_us = totals.since_us;
  activity.disk_bytes = size_bytes_of(path_);
  activity.budget_bytes = static_cast<std::int64_t>(options_of(path_).disk_budget_bytes);
  activity.total = sum_of(totals);
  if (!is_first) activity.now = activity.total.since(total_);
  auto by_scope = sums_by_scope(totals);
  for (const auto& [scope, total] : by_scope) {
    ScopeActivity one{scope, "", {}, total};
    if (!is_first) one.now = total.since(scopes_[scope]);
    activity.scopes.push_back(std::move(one));
  }
  std::sort(activity.scopes.begin(), activity.scopes.end(), [](const auto& a, const auto& b) {
    const auto calls = [](const Counted& counted) {
      return counted.looked_up() + counted.bypassed();
    };
    const auto rank = [&](const ScopeActivity& s) {
      return std::pair(calls(s.now), calls(s.total));
    };
    return rank(a) != rank(b) ? rank(a) > rank(b) : a.scope < b.scope;
  });
  MODCACHE_RETURN_IF_ERROR(name_scopes(activity));
  if (!is_first) looked_up_.push_back(activity.now.looked_up());
  if (looked_up_.size() > kMostIntervals) looked_up_.erase(looked_up_.begin());
  activity.looked_up = looked_up_;
  total_ = activity.total;
  scopes_ = std::move(by_scope);
  return activity;
}

Status ActivityWatch::name_scopes(Activity& activity) {
  const auto is_known = [this](const ScopeActivity& one) { return names_.count(one.scope) != 0; };
  const bool are_known =
      has_names_ && std::all_of(activity.scopes.begin(), activity.scopes.end(), is_known);
  if (!are_known) {
    MODCACHE_ASSIGN_OR_RETURN(auto on_record, names_on_record(path_));
    has_names_ = true;
    for (const ScopeActivity& one : activity.scopes) names_[one.scope] = on_record[one.scope];
  }
  for (ScopeActivity& one : activity.scopes) one.class_name = names_[one.scope];
  return Status::ok();
}

}  // namespace modcache::command_line
