// SPDX-License-Identifier: Apache-2.0
//
// modcache ls: the entries of a directory, or its scopes.
#include <charconv>
#include <limits>
#include <set>

#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/entry_columns.h"
#include "fs/posix_file_system.h"

namespace modcache::command_line {
namespace {

Result<std::uint64_t> parse_limit(const std::optional<std::string>& text) {
  if (!text) return std::numeric_limits<std::uint64_t>::max();
  std::uint64_t limit = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, limit);
  if (error == std::errc() && rest == end) return limit;
  return Status::invalid_argument("--limit is '" + *text + "', but must be a number of entries");
}

const std::vector<Column>& scope_columns() {
  static const std::vector<Column> columns{
      {"scope", "SCOPE"},     {"namespace", ""},       {"class", "CACHED"},
      {"methods", "METHODS"}, {"entries", "ENTRIES"},  {"disk_bytes", "SIZE"},
      {"run_us", "RUN TIME"}, {"first_stored_at", ""}, {"last_stored_at", "STORED LAST"},
      {"has_manifest", ""}};
  return columns;
}

std::vector<Cell> cells_of(const KnownScope& scope) {
  return {Cell::text(scope.scope),
          Cell::text(scope.name_space),
          scope.manifest ? Cell::text(scope.manifest->class_name) : Cell::absent(),
          Cell::text(scope.methods),
          Cell::count(scope.totals.entries),
          Cell::size_bytes(scope.totals.record_bytes),
          Cell::duration_us(scope.totals.run_us),
          Cell::time_us(scope.totals.first_stored_at_us),
          Cell::time_us(scope.totals.last_stored_at_us),
          Cell::yes_no(scope.manifest.has_value())};
}

class LsCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"ls", "[DIR]", "The entries of a directory, or its scopes",
         "Entries come in the order of their contexts and, within one, of their "
         "keys, 2 before 10. Exit status 1: --scope is not there, or --long found damage.\n\n"
         "  modcache ls DIR --scopes\n  modcache ls DIR --scope encoder@3 "
         "--prefix val/ --long"});
    arguments.words(0, 1, words_);
    arguments.option("--scope", "S",
                     "Entries of this scope alone; a part that begins only one is "
                     "enough",
                     scope_);
    arguments.option("--prefix", "P", "Entries whose keys begin so", prefix_);
    arguments.option("--limit", "N", "At most so many", limit_);
    arguments.flag("--long", "With what each value is, which is read from the segments", is_long_);
    arguments.flag("--scopes", "The scopes, and not the entries", lists_scopes_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(auto limit, parse_limit(limit_));
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_ASSIGN_OR_RETURN(auto directory, CacheDirectory::open(path));
    std::string scope;
    if (scope_) {
      auto named = scope_in(*directory);
      if (!named.is_ok()) return finding_if_not_found(output, named.status());
      scope = named.value();
    }
    return lists_scopes_ ? list_scopes(output, *directory, limit, scope)
                         : list_entries(output, *directory, limit, scope);
  }

 private:
  Result<std::string> scope_in(const CacheDirectory& directory) const {
    MODCACHE_ASSIGN_OR_RETURN(auto scopes, directory.scopes());
    return scope_named(names_of(scopes), *scope_);
  }

  Result<ExitCode> list_scopes(Output& output, const CacheDirectory& directory, std::uint64_t limit,
                               const std::string& scope) const {
    MODCACHE_ASSIGN_OR_RETURN(auto scopes, directory.scopes());
    Report report = this->report(output);
    report.begin_rows("scopes", scope_columns(), "no scopes");
    for (const KnownScope& known : scopes) {
      if (scope_ && known.scope != scope) continue;
      if (limit-- == 0 || !report.add_row(cells_of(known))) break;
    }
    report.end_rows();
    report.finish();
    return ExitCode::kSuccess;
  }

  Result<ExitCode> list_entries(Output& output, CacheDirectory& directory, std::uint64_t limit,
                                const std::string& scope) const {
    MODCACHE_RETURN_IF_ERROR(directory.name_contexts());
    Report report = this->report(output);
    EntryColumns columns(directory.path(), is_long_);
    report.begin_rows("entries", columns.columns(), "no entries");
    for (const KnownContext& context : directory.contexts()) {
      if (scope_ && context.scope() != scope) continue;
      auto goes_on = directory.for_each_in_order(
          context, prefix_.value_or(""), limit, [&](const store::ListedEntry& entry) {
            --limit;
            return report.add_row(columns.cells(context, entry));
          });
      if (!goes_on.is_ok()) return goes_on.status();
      if (!goes_on.value() || limit == 0) break;
    }
    report.end_rows();
    report.finish();
    return columns.damaged() > 0 ? ExitCode::kFindings : ExitCode::kSuccess;
  }

  std::optional<std::string> scope_;
  std::optional<std::string> prefix_;
  std::optional<std::string> limit_;
  bool is_long_ = false;
  bool lists_scopes_ = false;
};

}  // namespace

CommandPtr make_ls_command() { return std::make_unique<LsCommand>(); }

}  // namespace modcache::command_line
