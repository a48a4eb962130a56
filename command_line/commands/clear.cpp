// SPDX-License-Identifier: Apache-2.0
//
// modcache clear: removes entries, also for the processes that use the directory at the moment.
#include <algorithm>

#include "base/clock.h"
#include "command_line/cache_directory.h"
#include "command_line/changing.h"
#include "command_line/commands/commands.h"
#include "command_line/units.h"
#include "store/scope_filter.h"

namespace modcache::command_line {
namespace {

class ClearCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"clear", "[DIR]", "Remove entries: all, or those that the options name",
         "Options narrow: an entry goes if all of them name it. Processes that use the directory\n"
         "see it with their next call. Exit status 1: there is no such scope.\n\n  modcache clear "
         "DIR --scope encoder@3 --prefix val/"});
    arguments.words(0, 1, words_);
    arguments.option("--scope", "S", "Entries of this scope, given whole", scope_);
    arguments.option("--prefix", "P", "Entries whose keys begin so", prefix_);
    arguments.option("--namespace", "N", "Entries of this namespace; '' is the unnamed one",
                     name_space_);
    arguments.option("--older-than", "AGE", "Entries stored longer ago, such as 36h or 30d", age_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_RETURN_IF_ERROR(check_narrows("--scope", scope_));
    MODCACHE_RETURN_IF_ERROR(check_narrows("--prefix", prefix_));
    store::ClearFilter filter{scope_.value_or(""), prefix_.value_or(""), 0};
    if (name_space_) {
      filter.scope = store::scope_range(cache::description_prefix_of(*name_space_), filter.scope);
    }
    if (age_) {
      auto age = parse_age_us(*age_);
      if (!age.is_ok()) return age.status();
      // The smallest time that is none would mean "whenever".
      filter.older_than_us = std::max<std::int64_t>(1, now_us() - age.value());
    }
    auto path = directory_before(words_, 0);
    if (!path.is_ok()) return path.status();
    auto store = open_to_change(path.value());
    if (!store.is_ok()) return store.status();
    const std::int64_t before = size_bytes_of(path.value());
    auto removed = store.value()->clear(filter);
    if (!removed.is_ok()) return removed.status();
    if (filter.covers_everything()) MODCACHE_RETURN_IF_ERROR(store.value()->clear_notes());
    store.value() = nullptr;  // which empties the log
    const std::int64_t freed = before - size_bytes_of(path.value());
    Report report = this->report(output);
    report.add("directory", "directory", Cell::text(path.value()));
    report.add("removed", "entries removed", Cell::count(removed.value()));
    report.add("freed_bytes", "disk space freed",
               Cell::size_bytes(std::max<std::int64_t>(0, freed)));
    report.finish();
    if (removed.value() == 0 && scope_) return say_if_no_scope(output, path.value());
    return ExitCode::kSuccess;
  }

 private:
  Result<ExitCode> say_if_no_scope(Output& output, const std::string& path) const {
    const Status status = check_has_scope(path, *scope_);
    if (status.is_ok()) return ExitCode::kSuccess;
    if (!status.is_not_found()) return status;
    output.say(status.message());
    return ExitCode::kFindings;
  }

  std::vector<std::string> words_;
  std::optional<std::string> scope_;
  std::optional<std::string> prefix_;
  std::optional<std::string> name_space_;
  std::optional<std::string> age_;
};

}  // namespace

CommandPtr make_clear_command() { return std::make_unique<ClearCommand>(); }

}  // namespace modcache::command_line
