// SPDX-License-Identifier: Apache-2.0
//
// modcache clear: removes entries, also for the processes that use the directory at the moment.
#include <algorithm>

#include "base/clock.h"
#include "cache/row_note.h"
#include "command_line/cache_directory.h"
#include "command_line/changing.h"
#include "command_line/commands/commands.h"
#include "command_line/units.h"
#include "fs/posix_file_system.h"
#include "store/directory/notes.h"
#include "store/entry/scope_filter.h"

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
    MODCACHE_ASSIGN_OR_RETURN(auto filter, filter_of(scope_, prefix_));
    if (name_space_) {
      filter.scope = store::scope_range(cache::description_prefix_of(*name_space_), filter.scope);
    }
    if (age_) {
      MODCACHE_ASSIGN_OR_RETURN(auto age, parse_age_us(*age_));
      // 0 would mean "no limit".
      filter.older_than_us = std::max<std::int64_t>(1, now_us() - age);
    }
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_ASSIGN_OR_RETURN(auto store, open_to_change(path));
    const std::int64_t before = size_bytes_of(path);
    MODCACHE_ASSIGN_OR_RETURN(auto removed, store->clear(filter));
    if (filter.covers_everything()) MODCACHE_RETURN_IF_ERROR(store->clear_notes());
    if (scope_ && !prefix_ && !age_) MODCACHE_RETURN_IF_ERROR(clear_row_notes(path, *store));
    store = nullptr;  // closing it empties the database's log
    const std::int64_t freed = before - size_bytes_of(path);
    Report report = this->report(output, path);
    report.add("removed", "entries removed", Cell::count(removed));
    report.add("freed_bytes", "disk space freed",
               Cell::size_bytes(std::max<std::int64_t>(0, freed)));
    report.finish();
    if (removed > 0 || !scope_) return ExitCode::kSuccess;
    const Status scope = check_has_scope(path, *scope_);
    if (!scope.is_ok()) return finding_if_not_found(output, scope);
    return ExitCode::kSuccess;
  }

 private:
  Status clear_row_notes(const std::string& path, store::Store& store) const {
    const auto directory = store::Directory::at(fs::posix_file_system(), path);
    std::vector<std::string> notes;
    MODCACHE_RETURN_IF_ERROR(
        store::visit_notes(directory, [&](std::string_view about, std::string_view) {
          if (cache::is_row_note_of(about, *scope_)) notes.emplace_back(about);
        }));
    for (const std::string& about : notes) MODCACHE_RETURN_IF_ERROR(store.keep_note(about, ""));
    return Status::ok();
  }

  std::optional<std::string> scope_;
  std::optional<std::string> prefix_;
  std::optional<std::string> name_space_;
  std::optional<std::string> age_;
};

}  // namespace

CommandPtr make_clear_command() { return std::make_unique<ClearCommand>(); }

}  // namespace modcache::command_line
