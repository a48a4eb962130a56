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
    arguments.flag("--triton-caches",
                   "The folder with the response cache for Triton, for its --cache-directory",
                   is_of_triton_);
  }

  Result<ExitCode> run(Output& output) override {
    auto installation = find();
    if (!installation.is_ok()) return finding_if_not_found(output, installation.status());
    if (is_of_triton_) return show_triton_caches(output, installation.value());
    auto library = library_for(installation.value(), torch_.value_or(""));
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
  Result<Installation> find() const {
    if (torch_.has_value() && torch_->empty()) {
      return Status::invalid_argument("--torch is empty, but must be a version such as 2.13");
    }
    const char* const named = std::getenv("MODCACHE_LIBRARY");
    return named != nullptr && *named != '\0' ? installation_named(named) : find_installation();
  }

  // One for all versions of torch, as it needs none.
  Result<ExitCode> show_triton_caches(Output& output, const Installation& installation) {
    const auto caches = triton_caches_of(installation);
    if (!caches.is_ok()) return finding_if_not_found(output, caches.status());
    Report report = this->report(output);
    report.add("triton_caches", "", Cell::text(caches.value()));
    report.finish();
    if (!is_json()) output.write(caches.value() + '\n');
    return ExitCode::kSuccess;
  }

  std::optional<std::string> torch_;
  bool is_of_triton_ = false;
};

}  // namespace

CommandPtr make_path_command() { return std::make_unique<PathCommand>(); }

}  // namespace modcache::command_line
