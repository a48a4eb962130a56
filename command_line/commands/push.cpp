// SPDX-License-Identifier: Apache-2.0
//
// modcache push and pull: move the entries of a directory to and from the server of a remote tier.
#include <chrono>
#include <utility>

#include "cache/remote_pull.h"
#include "cache/remote_push.h"
#include "cache/settings.h"
#include "command_line/cache_directory.h"
#include "command_line/changing.h"
#include "command_line/commands/commands.h"
#include "command_line/installation.h"
#include "command_line/progress.h"
#include "command_line/units.h"
#include "fs/posix_file_system.h"

namespace modcache::command_line {
namespace {

class Stopwatch {
 public:
  std::int64_t elapsed_us() const {
    const auto elapsed = std::chrono::steady_clock::now() - began_;
    return std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count();
  }

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// The part that both commands have in common.
class MoveCommand : public Command {
 protected:
  void declare_move(Arguments& arguments) {
    arguments.words(0, 1, words_);
    arguments.option("--remote", "ADDRESS",
                     "The server, as in the setting `remote`; by default that of MODCACHE_REMOTE",
                     remote_);
    arguments.option("--scope", "S", "Entries of this scope alone, given whole", scope_);
    arguments.option("--namespace", "N",
                     "Entries of this namespace; '' is the unnamed one. By default that of "
                     "MODCACHE_NAMESPACE, or all where it is not set",
                     name_space_);
  }

  // Reads the environment, and checks the options.
  Status prepare(Output& output) {
    MODCACHE_RETURN_IF_ERROR(filter_of(scope_, std::nullopt).status());
    std::vector<std::string> warnings;
    settings_ = cache::settings_from_environment(warnings);
    for (const std::string& warning : warnings) output.say(warning);
    if (remote_) settings_.remote = *remote_;
    if (!name_space_ && cache::is_in_environment("namespace")) name_space_ = settings_.name_space;
    if (!settings_.remote.empty()) return Status::ok();
    return Status::invalid_argument(
        "no server was given: --remote ADDRESS or MODCACHE_REMOTE says which, such as "
        "redis://host:6379/0");
  }

  // These follow prepare().
  Result<std::unique_ptr<cache::RemoteBulk>> connect() const {
    return cache::RemoteBulk::connect(settings_, cache::connect_by_library_in(engine_folders()));
  }
  cache::MoveFilter filter() const { return {name_space_, scope_}; }

  // Says where nothing was named by the options, which is a finding.
  ExitCode judge_seen(Output& output, std::int64_t seen) const {
    if (seen > 0 || filter().covers_everything()) return ExitCode::kSuccess;
    output.say("no entry is what the options name");
    return ExitCode::kFindings;
  }

 private:
  std::optional<std::string> remote_;
  std::optional<std::string> scope_;
  std::optional<std::string> name_space_;
  cache::Settings settings_;
};

class PushCommand final : public MoveCommand {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"push", "[DIR]", "Write what a directory holds to a server that machines share",
         "Entries that the server has stay there; those of a pack may be pushed, too. Others may\n"
         "use both meanwhile. It may be ended at any time, and goes on where it was when it is\n"
         "called again. A password is better in MODCACHE_REMOTE than in an argument, which all\n"
         "processes of this machine can read.\n"
         "Exit status 1: the server did not take all of them, or damaged ones were left out.\n\n"
         "  MODCACHE_REMOTE=redis://host:6379/0 modcache push DIR"});
    declare_move(arguments);
    arguments.flag("--dry-run", "Write nothing; count what would be written", is_dry_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_ASSIGN_OR_RETURN(const auto source, open_source(path));
    MODCACHE_RETURN_IF_ERROR(prepare(output));
    MODCACHE_ASSIGN_OR_RETURN(const auto server, connect());
    const Stopwatch watch;
    Progress progress(output);
    const auto show = [&progress](const cache::PushSummary& so_far, std::int64_t of_entries) {
      progress.show(so_far.seen(), of_entries, so_far.payload_bytes);
    };
    MODCACHE_ASSIGN_OR_RETURN(const cache::PushSummary summary,
                              cache::push_entries(source, *server, filter(), is_dry_, show));
    output.end_progress();
    Report report = this->report(output, path);
    report.add("server", "server", Cell::text(server->shown_address()));
    report.add("is_dry_run", "", Cell::yes_no(is_dry_));
    report.add("entries", is_dry_ ? "entries to push" : "entries pushed",
               Cell::count(summary.entries));
    report.add("value_bytes", "size of the values",
               Cell::size_bytes(static_cast<std::int64_t>(summary.payload_bytes)));
    report.add("there", "there already", Cell::count(summary.there));
    report.add("cleared", "", Cell::count(summary.cleared));
    report.add("broken", "", Cell::count(summary.broken));
    report.add("failed", "", Cell::count(summary.failed));
    report.add("elapsed_us", "time", Cell::duration_us(watch.elapsed_us()));
    report.finish();
    return judge(output, summary);
  }

 private:
  static Result<cache::PushSource> open_source(const std::string& path) {
    if (!is_file(path)) MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
    auto source = cache::PushSource::open(fs::posix_file_system(), path);
    if (source.status().code() == StatusCode::kInvalidArgument) return check_is_cache(path);
    return source;
  }

  ExitCode judge(Output& output, const cache::PushSummary& summary) const {
    ExitCode code = judge_seen(output, summary.seen());
    if (summary.cleared > 0) {
      output.say(count_text(summary.cleared) +
                 " entries were left out, as the server was cleared of what is that old");
    }
    if (summary.broken > 0) {
      output.say(count_text(summary.broken) +
                 " damaged entries were left out; modcache verify says which");
      code = ExitCode::kFindings;
    }
    if (!summary.failure.is_ok() || summary.failed > 0) {
      const std::string why = summary.failure.is_ok() ? "an entry is too large for any server"
                                                      : summary.failure.message();
      output.say(why + "; " + count_text(summary.entries) +
                 " entries were pushed, and are there. Pushing again goes on from there");
      code = ExitCode::kFindings;
    }
    return code;
  }

  bool is_dry_ = false;
};

class PullCommand final : public MoveCommand {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"pull", "[DIR]", "Put what a server holds that machines share into a directory",
         "The directory is made where there is none; entries that it has stay as they are, and\n"
         "none leaves to make room: MODCACHE_DISK says how large the directory may become. It may\n"
         "be ended at any time, and called again.\n"
         "Exit status 1: the server failed, entries found no room, or some were left out that\n"
         "cannot be used.\n\n"
         "  MODCACHE_REMOTE=redis://host:6379/0 modcache pull DIR --scope encoder@3"});
    declare_move(arguments);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_RETURN_IF_ERROR(check_may_be_cache(path));
    MODCACHE_RETURN_IF_ERROR(prepare(output));
    MODCACHE_ASSIGN_OR_RETURN(const auto server, connect());
    const Stopwatch watch;
    Progress progress(output);
    const auto show = [&progress](const cache::PullSummary& so_far) {
      progress.show(so_far.seen(), 0, so_far.payload_bytes);
    };
    const store::StoreOptions into = options_of(path);
    const auto budget_bytes = static_cast<std::int64_t>(into.disk_budget_bytes);
    MODCACHE_ASSIGN_OR_RETURN(
        const cache::PullSummary summary,
        cache::pull_entries(fs::posix_file_system(), *server, into, filter(), show));
    output.end_progress();
    Report report = this->report(output, path);
    report.add("server", "server", Cell::text(server->shown_address()));
    report.add("entries", "entries put", Cell::count(summary.entries));
    report.add("value_bytes", "size of the values",
               Cell::size_bytes(static_cast<std::int64_t>(summary.payload_bytes)));
    report.add("there", "there already", Cell::count(summary.there));
    report.add("cleared", "cleared on the server", Cell::count(summary.cleared));
    report.add("damaged", "", Cell::count(summary.damaged));
    report.add("no_context", "", Cell::count(summary.no_context));
    report.add("foreign", "", Cell::count(summary.foreign));
    report.add("not_kept", "", Cell::count(summary.not_kept));
    report.add("elapsed_us", "time", Cell::duration_us(watch.elapsed_us()));
    report.finish();
    return judge(output, summary, budget_bytes);
  }

 private:
  ExitCode judge(Output& output, const cache::PullSummary& summary,
                 std::int64_t budget_bytes) const {
    ExitCode code = judge_seen(output, summary.seen());
    const auto find = [&](std::int64_t entries, const std::string& what) {
      if (entries == 0) return;
      output.say(count_text(entries) + what);
      code = ExitCode::kFindings;
    };
    find(summary.damaged, " damaged entries were left out");
    find(summary.no_context, " entries were left out of which the server lost what they belong to");
    find(summary.foreign, " values were left out that are no entries, or of a newer modcache");
    find(summary.not_kept,
         " entries found no room in " + size_text(budget_bytes) +
             ", which is what the directory may have; set MODCACHE_DISK to what the programs that "
             "use it have as their setting `disk`, and pull again");
    if (!summary.failure.is_ok()) {
      output.say(summary.failure.message() + "; " + count_text(summary.entries) +
                 " entries were put, and are there. Pulling again brings the others");
      code = ExitCode::kFindings;
    }
    return code;
  }
};

}  // namespace

CommandPtr make_push_command() { return std::make_unique<PushCommand>(); }
CommandPtr make_pull_command() { return std::make_unique<PullCommand>(); }

}  // namespace modcache::command_line
