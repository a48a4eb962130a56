// SPDX-License-Identifier: Apache-2.0
#include "command_line/installation.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "command_line/units.h"

namespace modcache::command_line {
namespace {

namespace files = std::filesystem;

constexpr char kLibrary[] = "libmodcache.so";
constexpr char kEngineLibrary[] = "libmodcache_remote.so";
constexpr char kTorchFolder[] = "torch-";
constexpr char kCompiledPart[] = "_guards.cpython-";

constexpr char kDigits[] = "0123456789";

// "2.13" of "2.13.0+cpu"; empty for a text that is not a version.
std::string minor_of(const std::string& version) {
  const std::size_t dot = version.find_first_not_of(kDigits);
  if (dot == 0 || dot == std::string::npos || version[dot] != '.') return "";
  const std::size_t end = std::min(version.find_first_not_of(kDigits, dot + 1), version.size());
  return end == dot + 1 ? "" : version.substr(0, end);
}

// Compares versions as numbers: 2.9 comes before 2.13.
bool is_earlier(const InstalledLibrary& a, const InstalledLibrary& b) {
  return std::make_pair(a.torch.size(), a.torch) < std::make_pair(b.torch.size(), b.torch);
}

// Returns the folders of `parent` whose names begin with `beginning`, in order.
std::vector<files::path> folders_in(const files::path& parent, const std::string& beginning) {
  std::vector<files::path> folders;
  std::error_code error;
  for (const auto& entry : files::directory_iterator(parent, error)) {
    if (entry.path().filename().string().rfind(beginning, 0) == 0) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Returns an empty text when the file is not a JSON object with that member.
std::string torch_in_file(const files::path& path) {
  std::error_code error;
  if (!files::is_regular_file(path, error)) return "";  // a stream over a directory throws
  std::ifstream file(path);
  const auto facts = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!facts.is_object()) return "";
  const auto torch = facts.find("torch");
  return torch != facts.end() && torch->is_string() ? minor_of(torch->get<std::string>()) : "";
}

// Reads libmodcache.json, which the build writes beside libmodcache.so. Without it, the name of the
// package's folder tells.
std::string torch_of(files::path library) {
  const std::string folder = library.parent_path().filename().string();
  std::string torch = torch_in_file(library.replace_extension(".json"));
  if (torch.empty() && folder.rfind(kTorchFolder, 0) == 0) {
    torch = minor_of(folder.substr(sizeof(kTorchFolder) - 1));
  }
  return torch;
}

// Returns false when the folder has no library.
bool add_library(const files::path& folder, Installation& found) {
  found.tried.push_back((folder / kLibrary).string());
  auto library = library_at(found.tried.back());
  if (!library.is_ok()) return false;
  found.libraries.push_back(std::move(library).value());
  return true;
}

// torch/version.py says: __version__ = '2.13.0+cpu'
std::string torch_in_packages(const files::path& packages) {
  std::ifstream file(packages / "torch" / "version.py");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("__version__", 0) != 0) continue;
    const std::size_t quote = line.find_first_of("'\"");
    return quote == std::string::npos ? "" : minor_of(line.substr(quote + 1));
  }
  return "";
}

// "3.11" of "_guards.cpython-311-x86_64-linux-gnu.so"
std::string python_of(const std::string& file_name) {
  const std::size_t begin = sizeof(kCompiledPart) - 1;
  const std::string digits =
      file_name.substr(begin, file_name.find_first_not_of(kDigits, begin) - begin);
  return digits.size() < 2 ? digits : digits.substr(0, 1) + "." + digits.substr(1);
}

// "3.11" of ".../python3.11/site-packages"
std::string python_in(const files::path& packages) {
  const std::string folder = packages.parent_path().filename().string();
  const std::size_t digits = folder.find_first_of(kDigits);
  return digits == std::string::npos ? "" : folder.substr(digits);
}

// Adds the Python package, which has one library per version of torch. Returns false when it is not
// in this folder.
bool add_package(const files::path& packages, Installation& found) {
  const files::path lib = packages / "modcache" / "lib";
  const std::vector<files::path> folders = folders_in(lib, kTorchFolder);
  if (folders.empty()) found.tried.push_back((lib / "torch-*" / kLibrary).string());
  for (const files::path& folder : folders) add_library(folder, found);
  if (found.libraries.empty()) return false;
  std::sort(found.libraries.begin(), found.libraries.end(), is_earlier);
  found.torch = torch_in_packages(packages);
  found.python = minor_of(python_in(packages));
  for (const files::path& part : folders_in(lib, kCompiledPart)) {
    found.pythons.push_back(python_of(part.filename().string()));
  }
  return true;
}

// Returns the folders in which the Pythons of a prefix keep their packages.
std::vector<files::path> package_folders_in(const files::path& prefix) {
  std::vector<files::path> folders;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    for (const files::path& python : folders_in(prefix / lib, "python3")) {
      folders.push_back(python / "site-packages");
      folders.push_back(python / "dist-packages");
    }
  }
  return folders;
}

Result<std::string> own_path() {
  std::error_code error;
  const files::path program = files::read_symlink("/proc/self/exe", error);
  if (error) return Status::io_error("this program does not know where it is: no /proc here");
  return program.string();
}

}  // namespace

Result<InstalledLibrary> library_at(const std::string& path) {
  std::error_code error;
  const bool is_file = files::is_regular_file(path, error);
  const files::path library = files::canonical(path, error);
  if (!is_file || error) return Status::not_found("'" + path + "' is not there");
  return InstalledLibrary{library.string(), torch_of(path)};
}

Installation installation_beside(const std::string& program) {
  // `cmake --install` and pip put the program into `bin` of a prefix, and so does a build.
  const files::path prefix = files::path(program).parent_path().parent_path();
  Installation found;
  for (const char* lib : {MODCACHE_LIBRARY_FOLDER, "lib", "lib64"}) {
    if (add_library(prefix / lib, found)) return found;
  }
  // Several Pythons may share a prefix. A package with a torch beside it is preferred.
  std::optional<Installation> without_torch;
  for (const files::path& packages : package_folders_in(prefix)) {
    Installation package = found;
    if (!add_package(packages, package)) {
      found.tried = std::move(package.tried);
      continue;
    }
    if (!package.torch.empty()) return package;
    if (!without_torch.has_value()) without_torch = std::move(package);
  }
  if (without_torch.has_value()) return *without_torch;
  if (add_package(prefix, found)) return found;  // pip install --target
  add_library(prefix, found);
  return found;
}

std::vector<std::string> engine_folders_beside(const std::string& program) {
  const files::path prefix = files::path(program).parent_path().parent_path();
  std::vector<files::path> candidates;
  for (const char* lib : {MODCACHE_LIBRARY_FOLDER, "lib", "lib64"}) {
    candidates.push_back(prefix / lib);
    candidates.push_back(prefix / lib / "modcache" / "lib");
  }
  for (const files::path& packages : package_folders_in(prefix)) {
    candidates.push_back(packages / "modcache" / "lib");
  }
  candidates.push_back(prefix / "modcache" / "lib");  // pip install --target
  candidates.push_back(prefix);                       // a build
  std::vector<std::string> folders;
  std::error_code error;
  for (const files::path& folder : candidates) {
    const bool is_known =
        std::find(folders.begin(), folders.end(), folder.string()) != folders.end();
    if (!is_known && files::is_regular_file(folder / kEngineLibrary, error)) {
      folders.push_back(folder.string());
    }
  }
  return folders;
}

std::vector<std::string> engine_folders() {
  const auto program = own_path();
  return program.is_ok() ? engine_folders_beside(program.value()) : std::vector<std::string>();
}

Result<Installation> find_installation() {
  MODCACHE_ASSIGN_OR_RETURN(const std::string program, own_path());
  return installation_beside(program);
}

Result<InstalledLibrary> library_for(const Installation& installation, const std::string& torch) {
  if (installation.libraries.empty()) {
    std::vector<std::string> tried;
    for (const std::string& path : installation.tried) {
      if (std::find(tried.begin(), tried.end(), path) == tried.end()) tried.push_back(path);
    }
    return Status::not_found(std::string(kLibrary) + " is not there; tried: " + joined(tried) +
                             ". Install modcache with pip or cmake --install, or set "
                             "MODCACHE_LIBRARY to its path");
  }
  std::vector<std::string> offered;
  const std::string wanted = torch.empty() ? installation.torch : minor_of(torch);
  if (wanted.empty() && !torch.empty()) {
    return Status::invalid_argument("--torch is '" + torch +
                                    "', but must be a version such as 2.13 or 2.13.0");
  }
  for (const InstalledLibrary& library : installation.libraries) {
    if (!wanted.empty() && library.torch == wanted) return library;
    offered.push_back(library.torch.empty() ? "an unknown version" : library.torch);
  }
  if (wanted.empty() && installation.libraries.size() == 1) return installation.libraries[0];
  if (wanted.empty()) {
    return Status::not_found("there are libraries for torch " + joined(offered) +
                             ", and no torch beside them: choose one with --torch");
  }
  return Status::not_found("there is no library for torch " + wanted + ", only for torch " +
                           joined(offered) +
                           ": take one of those, or build modcache against this torch");
}

Result<std::string> triton_caches_of(const Installation& installation) {
  if (installation.libraries.empty()) return library_for(installation, "").status();
  files::path folder = files::path(installation.libraries.front().path).parent_path();
  if (folder.filename().string().rfind(kTorchFolder, 0) == 0) folder = folder.parent_path();
  folder /= "triton_caches";
  std::error_code error;
  if (files::is_regular_file(folder / "modcache" / "libtritoncache_modcache.so", error)) {
    return folder.string();
  }
  return Status::not_found(
      "'" + folder.string() +
      "' has no modcache/libtritoncache_modcache.so: `cmake --install` and pip "
      "put it there");
}

}  // namespace modcache::command_line
