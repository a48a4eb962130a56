// SPDX-License-Identifier: Apache-2.0
//
// modcache pack and unpack: turn a directory into one sealed file, and back.
#include "command_line/cache_directory.h"
#include "command_line/changing.h"
#include "command_line/commands/commands.h"
#include "command_line/progress.h"
#include "command_line/terminal_text.h"
#include "command_line/units.h"
#include "fs/posix_file_system.h"
#include "store/packing/packing.h"

namespace modcache::command_line {
namespace {

std::int64_t file_size_bytes(const std::string& path) {
  const auto info = fs::posix_file_system().info(path);
  return info.is_ok() ? static_cast<std::int64_t>(info.value().size_bytes) : 0;
}

store::OnPackProgress shown_by(Progress& progress) {
  return [&progress](const store::PackSummary& so_far, std::int64_t of_entries) {
    progress.show(so_far.entries + so_far.there, of_entries, so_far.payload_bytes);
  };
}

// Reports the broken entries, which were left out.
ExitCode say_broken(Output& output, const store::PackSummary& summary) {
  if (summary.broken == 0) return ExitCode::kSuccess;
  output.say(count_text(summary.broken) +
             " damaged entries were left out; modcache verify says "
             "which");
  return ExitCode::kFindings;
}

class PackCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"pack", "[DIR] FILE", "Make one sealed file of a directory, to ship beside a model",
         "A program uses it by its setting `dir`: it is read only, mapped, on any machine, also\n"
         "over NFS. Others may use the directory meanwhile. A pack that is there is replaced once\n"
         "the new one is whole; any other file that is not empty stays. Exit status 1: damaged\n"
         "entries were left out, or the options name no entry and no file was written.\n\n"
         "  modcache pack DIR model.modcache --scope encoder@3"});
    arguments.words(1, 2, words_);
    arguments.option("--scope", "S", "Entries of this scope alone, given whole", scope_);
    arguments.option("--prefix", "P", "Entries whose keys begin so", prefix_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(const auto filter, filter_of(scope_, prefix_));
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 1));
    MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
    const std::string& file = words_.back();
    Progress progress(output);
    MODCACHE_ASSIGN_OR_RETURN(auto packed, store::write_pack(fs::posix_file_system(), path, file,
                                                             filter, shown_by(progress)));
    output.end_progress();
    const bool is_written = packed.entries > 0 || filter.covers_everything();
    Report report = this->report(output);
    report.add("file", "file", is_written ? Cell::text(file) : Cell::absent());
    report.add("entries", "entries", Cell::count(packed.entries));
    report.add("notes", "notes", Cell::count(packed.notes));
    report.add("broken", "", Cell::count(packed.broken));
    report.add("file_bytes", "size",
               is_written ? Cell::size_bytes(file_size_bytes(file)) : Cell::absent());
    report.finish();
    const ExitCode code = say_broken(output, packed);
    if (is_written) return code;
    return say_nothing_written(output, path, file);
  }

 private:
  Result<ExitCode> say_nothing_written(Output& output, const std::string& path,
                                       const std::string& file) const {
    const Status scope = scope_ ? check_has_scope(path, *scope_) : Status::ok();
    if (!scope.is_ok() && !scope.is_not_found()) return scope;
    output.say((scope.is_ok() ? "no entry is what the options name" : scope.message()) + "; '" +
               printable(file) + "' was not written");
    return ExitCode::kFindings;
  }

  std::optional<std::string> scope_;
  std::optional<std::string> prefix_;
};

class UnpackCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"unpack", "FILE [DIR]", "Put what a pack holds into a directory",
         "The directory is made where there is none; entries that it has stay as they are, and\n"
         "none leaves to make room: MODCACHE_DISK says how large the directory may become.\n"
         "Exit status 1: entries found no room, or damaged ones were left out."});
    arguments.words(1, 2, words_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(
        auto path,
        directory_or_default(words_.size() == 2 ? std::optional(words_[1]) : std::nullopt));
    MODCACHE_RETURN_IF_ERROR(check_may_be_cache(path));
    Progress progress(output);
    const store::StoreOptions into = options_of(path);
    const auto budget_bytes = static_cast<std::int64_t>(into.disk_budget_bytes);
    MODCACHE_ASSIGN_OR_RETURN(auto unpacked, store::unpack_into(fs::posix_file_system(), words_[0],
                                                                into, shown_by(progress)));
    output.end_progress();
    Report report = this->report(output, path);
    report.add("entries", "entries put", Cell::count(unpacked.entries));
    report.add("there", "there already", Cell::count(unpacked.there));
    report.add("notes", "notes", Cell::count(unpacked.notes));
    report.add("broken", "", Cell::count(unpacked.broken));
    report.add("not_kept", "", Cell::count(unpacked.not_kept));
    report.finish();
    const ExitCode code = say_broken(output, unpacked);
    if (unpacked.not_kept == 0) return code;
    output.say(
        count_text(unpacked.not_kept) + " entries found no room in " + size_text(budget_bytes) +
        ", which is what the directory may have; set MODCACHE_DISK to what the programs that "
        "use it have as their setting `disk`, and unpack again");
    return ExitCode::kFindings;
  }
};

}  // namespace

CommandPtr make_pack_command() { return std::make_unique<PackCommand>(); }
CommandPtr make_unpack_command() { return std::make_unique<UnpackCommand>(); }

}  // namespace modcache::command_line
