// SPDX-License-Identifier: Apache-2.0
//
// modcache path: where the native library is that belongs to this program.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "command_line/commands/commands.h"

namespace modcache::command_line {
namespace {

namespace files = std::filesystem;

constexpr char kLibrary[] = "libmodcache.so";

bool is_file(const files::path& path) {
  std::error_code error;
  return files::is_regular_file(path, error);
}

// Folders of `parent` whose names begin with `beginning`, in order.
std::vector<files::path> folders_in(const files::path& parent, const std::string& beginning) {
  std::vector<files::path> folders;
  std::error_code error;
  for (const auto& entry : files::directory_iterator(parent, error)) {
    if (entry.path().filename().string().rfind(beginning, 0) == 0) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Where the library may be, best place first: `cmake --install` and pip put the program into `bin`
// of the same prefix; a build has it there, too.
std::vector<files::path> places_beside(const files::path& program) {
  const files::path prefix = program.parent_path().parent_path();
  std::vector<files::path> places;
  for (const char* lib : {MODCACHE_LIBRARY_FOLDER, "lib", "lib64"}) {
    places.push_back(prefix / lib / kLibrary);
  }
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    // The Python that it was built for, and then any.
    std::vector<files::path> pythons = folders_in(prefix / lib, "python3");
    std::sort(pythons.begin(), pythons.end(), [](const files::path& a, const files::path& b) {
      const bool is_other_a = a.filename() != MODCACHE_PYTHON_FOLDER;
      const bool is_other_b = b.filename() != MODCACHE_PYTHON_FOLDER;
      return is_other_a != is_other_b ? is_other_b : a < b;
    });
    for (const files::path& python : pythons) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        places.push_back(python / packages / "modcache" / kLibrary);
      }
    }
  }
  places.push_back(prefix / kLibrary);
  return places;
}

class PathCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe({"path", "", "Where libmodcache.so is, for torch.ops.load_library",
                        "It is looked for where this program was installed, unless "
                        "MODCACHE_LIBRARY names it."});
  }

  Result<ExitCode> run(Output& output) override {
    std::vector<files::path> places;
    const char* const named = std::getenv("MODCACHE_LIBRARY");
    if (named != nullptr && *named != '\0') {
      places.emplace_back(named);
    } else {
      std::error_code error;
      const files::path program = files::read_symlink("/proc/self/exe", error);
      if (error) return Status::io_error("this program does not know where it is: no /proc here");
      places = places_beside(program);
    }
    const auto found = std::find_if(places.begin(), places.end(), is_file);
    if (found == places.end()) return say_not_found(output, places);
    std::error_code error;
    const files::path library = files::canonical(*found, error);
    if (is_json()) {
      Report report = this->report(output);
      report.add("library", "", Cell::text(library.string()));
      report.add("version", "", Cell::text(MODCACHE_VERSION));
      report.finish();
    } else {
      output.write(library.string() + '\n');
    }
    return ExitCode::kSuccess;
  }

 private:
  static Result<ExitCode> say_not_found(Output& output, const std::vector<files::path>& places) {
    std::string tried;
    for (const files::path& place : places) {
      if (tried.find(place.string() + ',') == std::string::npos) tried += place.string() + ", ";
    }
    output.say(
        std::string(kLibrary) + " is not there; tried: " + tried.substr(0, tried.size() - 2) +
        ". Install modcache with pip or cmake --install, or set MODCACHE_LIBRARY to its path");
    return ExitCode::kFindings;
  }
};

}  // namespace

CommandPtr make_path_command() { return std::make_unique<PathCommand>(); }

}  // namespace modcache::command_line
