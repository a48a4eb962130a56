// SPDX-License-Identifier: Apache-2.0
//
// modcache path: prints where the native library for this program is.
#include <cstdlib>
#include <utility>

#include "command_line/commands/commands.h"
#include "command_line/installation.h"

namespace modcache::command_line {
namespace {

// Returns an installation whose only library is the one that MODCACHE_LIBRARY names.
Result<Installation> installation_named(const std::string& path) {
  auto library = library_at(path);
  if (!library.is_ok()) {
    return Status::not_found("MODCACHE_LIBRARY names '" + path +
                             "', which is not there. Unset it, or set it to the path of a "
                             "libmodcache.so");
  }
  Installation installation;
  installation.libraries.push_back(std::move(library).value());
  return installation;
}

class PathCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe({"path", "", "Where libmodcache.so is, for torch.ops.load_library",
                        "It is looked for where this program was installed, unless "
                        "MODCACHE_LIBRARY names it.\n"
                        "Where there are several, this is the one for the torch beside them."});
    arguments.option("--torch", "VERSION", "The one for this torch, such as 2.13", torch_);
  }

  Result<ExitCode> run(Output& output) override {
    auto library = find();
    if (!library.is_ok()) return finding_if_not_found(output, library.status());
    const InstalledLibrary& found = library.value();
    Report report = this->report(output);
    report.add("library", "", Cell::text(found.path));
    report.add("version", "", Cell::text(MODCACHE_VERSION));
    report.add("torch", "", Cell::text_if_any(found.torch));
    report.finish();
    if (!is_json()) output.write(found.path + '\n');
    return ExitCode::kSuccess;
  }

 private:
  Result<InstalledLibrary> find() const {
    if (torch_.has_value() && torch_->empty()) {
      return Status::invalid_argument("--torch is empty, but must be a version such as 2.13");
    }
    const char* const named = std::getenv("MODCACHE_LIBRARY");
    MODCACHE_ASSIGN_OR_RETURN(auto installation, named != nullptr && *named != '\0'
                                                     ? installation_named(named)
                                                     : find_installation());
    return library_for(installation, torch_.value_or(""));
  }

  std::optional<std::string> torch_;
};

}  // namespace

CommandPtr make_path_command() { return std::make_unique<PathCommand>(); }

}  // namespace modcache::command_line
