// SPDX-License-Identifier: Apache-2.0
//
// modcache show: shows all facts about the entries under one key, after reading and checking their
// bytes.
#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/entry_columns.h"
#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

class ShowCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe({"show", "[DIR] KEY", "What lies under a key, read and checked",
                        "One key may have an entry in each scope, and for each method and form.\n"
                        "Exit status 1: there is none, or one is damaged."});
    arguments.words(1, 2, words_);
    arguments.option("--scope", "S", "In this scope alone; a part that begins only one is enough",
                     scope_);
  }

  Result<ExitCode> run(Output& output) override {
    const std::string& key = words_.back();
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 1));
    MODCACHE_ASSIGN_OR_RETURN(auto opened, CacheDirectory::open(path));
    CacheDirectory& directory = *opened;
    MODCACHE_RETURN_IF_ERROR(directory.name_contexts());
    std::string scope;
    if (scope_) {
      std::vector<std::string> names;
      for (const KnownContext& context : directory.contexts()) names.push_back(context.scope());
      auto named = scope_named(names, *scope_);
      if (!named.is_ok()) return finding_if_not_found(output, named.status());
      scope = named.value();
    }
    return show(output, directory, key, scope);
  }

 private:
  Result<ExitCode> show(Output& output, const CacheDirectory& directory, const std::string& key,
                        const std::string& scope) const {
    Report report = this->report(output);
    EntryColumns columns(directory.path(), true, true);
    std::int64_t found = 0;
    report.begin_records("entries", columns.columns(), "");
    for (const KnownContext& context : directory.contexts()) {
      if (scope_ && context.scope() != scope) continue;
      auto read = directory.for_each(context, key, [&](const store::ListedEntry& entry) {
        // If the key exists, it is the first of those that begin with it.
        if (entry.key != key) return false;
        ++found;
        report.add_row(columns.cells(context, entry));
        return false;
      });
      if (!read.is_ok()) return read.status();
    }
    report.end_rows();
    report.finish();
    if (found == 0) output.say("there is no entry under the key '" + printable(key) + "'");
    return found == 0 || columns.damaged() > 0 ? ExitCode::kFindings : ExitCode::kSuccess;
  }

  std::optional<std::string> scope_;
};

}  // namespace

CommandPtr make_show_command() { return std::make_unique<ShowCommand>(); }

}  // namespace modcache::command_line
