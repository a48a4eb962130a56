// SPDX-License-Identifier: Apache-2.0
#include "command_line/diagnosis.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "cache/settings.h"
#include "command_line/terminal_text.h"
#include "command_line/units.h"
#include "fs/posix_file_system.h"
#include "store/directory/directory.h"
#include "store/directory/directory_files.h"
#include "store/index/index.h"
#include "store/index/wal_peek.h"

namespace modcache::command_line {
namespace {

using State = Finding::State;

// A process may append up to 256 MiB to a segment, so less space than that is soon used up.
constexpr std::int64_t kLittleSpaceBytes = 256 << 20;
constexpr std::int64_t kLittleFiles = 1000;
// The clocks of a network may differ by this much.
constexpr std::int64_t kClockToleranceUs = 120'000'000;
constexpr std::int64_t kAbandonedAfterUs = 3'600'000'000;
constexpr std::size_t kMostNamed = 5;

struct FileSystemType {
  std::uint64_t type;  // statfs(2)
  const char* name;
  bool is_network;
};
constexpr std::array<FileSystemType, 24> kFileSystems{{
    {0x6969, "NFS", true},           {0x517b, "SMB", true},        {0xff534d42, "CIFS", true},
    {0xfe534d42, "SMB2", true},      {0x5346414f, "AFS", true},    {0x00c36400, "CephFS", true},
    {0x0bd00bd0, "Lustre", true},    {0x47504653, "GPFS", true},   {0x19830326, "BeeGFS", true},
    {0x01021997, "9P", true},        {0x01161970, "GFS2", true},   {0x7461636f, "OCFS2", true},
    {0x65735546, "FUSE", false},     {0x01021994, "tmpfs", false}, {0x858458f6, "ramfs", false},
    {0xef53, "ext4", false},         {0x58465342, "XFS", false},   {0x9123683e, "Btrfs", false},
    {0x2fc12fc1, "ZFS", false},      {0xf2f52010, "F2FS", false},  {0x794c7630, "overlayfs", false},
    {0xca451a4e, "bcachefs", false}, {0x2011bab0, "exFAT", false}, {0x4d44, "FAT", false},
}};

std::string some_of(const std::vector<std::string>& names) {
  if (names.size() <= kMostNamed) return joined(names);
  const std::vector<std::string> first(names.begin(), names.begin() + kMostNamed);
  return joined(first) + " and " + std::to_string(names.size() - kMostNamed) + " more";
}

std::string plural(std::size_t count, const char* noun) {
  return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

}  // namespace

Finding judge_file_system(std::uint64_t type) {
  const auto known =
      std::find_if(kFileSystems.begin(), kFileSystems.end(),
                   [&](const FileSystemType& file_system) { return file_system.type == type; });
  Finding finding{State::kOk, "file system", "", ""};
  if (known == kFileSystems.end()) {
    finding.found = "one that is not known here";
    return finding;
  }
  finding.found = known->name;
  const std::string_view name = known->name;
  if (known->is_network) {
    finding.state = State::kProblem;
    finding.found += ", a network file system: the database's log works on one machine alone";
    finding.cure = "use a directory on a local disk; modcache pack makes a file that can be shared";
  } else if (name == "FUSE") {
    finding.state = State::kNote;
    finding.found += ", behind which anything may be";
    finding.cure = "use a local disk if other machines write there, too";
  } else if (name == "tmpfs" || name == "ramfs") {
    finding.state = State::kNote;
    finding.found += ", in memory: its bytes are gone after a restart of the machine";
  }
  return finding;
}

Finding check_file_system(const std::string& directory) {
  struct statfs facts {};
  if (::statfs(directory.c_str(), &facts) != 0) {
    return {State::kProblem, "file system", std::strerror(errno), ""};
  }
  return judge_file_system(static_cast<std::uint64_t>(facts.f_type) & 0xffffffffU);
}

Finding check_permissions(const std::string& directory, const DiskFiles& files) {
  constexpr const char* kCheck = "permissions";
  std::vector<std::string> unwritable;
  if (!fs::posix_file_system().is_writable(directory)) unwritable.emplace_back(".");
  for (const DiskFile& file : files.files()) {
    if (!file.is_writable) unwritable.push_back(file.name);
  }
  if (!unwritable.empty()) {
    return {State::kProblem, kCheck, "this user cannot write " + some_of(unwritable),
            "read only is a use, too (mode read); else have the owner, or chmod -R u+w, help"};
  }
  struct stat facts {};
  if (::stat(directory.c_str(), &facts) != 0) {
    return {State::kProblem, kCheck, std::strerror(errno), ""};
  }
  if ((facts.st_mode & S_IWOTH) != 0) {
    return {State::kNote, kCheck,
            "everybody on this machine can write here, and so change what models return",
            "chmod o-w '" + directory + "'"};
  }
  return {State::kOk, kCheck, "this user can read and write", ""};
}

// Looks at names and kinds alone, and opens nothing.
Finding check_kinds(const std::string& path) {
  using Use = store::ForeignFile::Use;
  constexpr const char* kCheck = "kinds of files";
  const auto directory = store::Directory::at(fs::posix_file_system(), path);
  const store::DirectoryFiles files = store::look_at_files(directory);
  if (files.foreign.empty()) return {State::kOk, kCheck, "regular files of this user", ""};
  std::vector<std::string> found;
  bool is_read = true;
  bool has_written = false;
  for (const store::ForeignFile& file : files.foreign) {
    has_written = has_written || file.use == Use::kWritten;
    is_read = is_read && (file.use == Use::kWritten || file.use == Use::kRead);
    if (found.size() < kMostNamed) found.push_back(file.status.message());
  }
  const std::string text = joined(found, "; ");
  if (is_read && has_written) {
    return {State::kProblem, kCheck, text + ": programs read here and store nothing",
            "copy the directory (cp -r, without -l) and use the copy"};
  }
  return {State::kProblem, kCheck, text,
          "find out who put it there; modcache verify '" + path +
              "' --fix renames it and makes the file anew"};
}

Finding judge_free_space(std::int64_t free_bytes, std::int64_t free_files,
                         std::int64_t budget_bytes, std::int64_t used_bytes) {
  constexpr const char* kCheck = "free space";
  const std::string found = size_text(free_bytes) + " free; " + size_text(used_bytes) +
                            " used of a budget of " + size_text(budget_bytes);
  if (free_bytes < kLittleSpaceBytes) {
    return {State::kProblem, kCheck, found, "make room: modcache clear, or another disk"};
  }
  if (free_files < kLittleFiles) {
    return {State::kProblem, kCheck, "room for " + count_text(free_files) + " more files only",
            "remove files from this file system"};
  }
  if (used_bytes > budget_bytes) {
    return {State::kNote, kCheck, found, "it shrinks when a program with this budget writes"};
  }
  if (budget_bytes - used_bytes > free_bytes) {
    return {State::kNote, kCheck, found + ": the disk is full before the budget is",
            "set MODCACHE_DISK to at most " + size_text(used_bytes + free_bytes)};
  }
  return {State::kOk, kCheck, found, ""};
}

Finding check_free_space(const std::string& directory, std::int64_t budget_bytes,
                         std::int64_t used_bytes) {
  struct statvfs facts {};
  if (::statvfs(directory.c_str(), &facts) != 0) {
    return {State::kProblem, "free space", std::strerror(errno), ""};
  }
  // Some file systems do not count files.
  const auto files = facts.f_files == 0 ? std::numeric_limits<std::int64_t>::max()
                                        : static_cast<std::int64_t>(facts.f_favail);
  return judge_free_space(static_cast<std::int64_t>(facts.f_bavail * facts.f_frsize), files,
                          budget_bytes, used_bytes);
}

Finding check_database(const std::string& path) {
  constexpr const char* kCheck = "database";
  const std::string versions = "format " + std::to_string(store::kUserVersion) + ", SQLite " +
                               std::string(store::sqlite_version());
  fs::FileSystem& file_system = fs::posix_file_system();
  const store::Directory directory = store::Directory::at(file_system, path);
  if (!file_system.info(directory.database_path()).is_ok()) {
    return {State::kProblem, kCheck, "missing",
            "modcache verify '" + path + "' --fix makes it anew; so does a program that writes"};
  }
  const store::LogLook log = store::look_at_log(directory, 1000);
  if (!log.is_live && log.size_bytes > 0) {
    return {State::kNote, kCheck, versions + "; its log waits for a program that writes", ""};
  }
  const auto mode = log.is_live ? store::Database::Mode::kRead : store::Database::Mode::kImmutable;
  const Status status =
      store::Index::open(file_system, directory.database_path(), mode, 1000).status();
  if (status.is_ok()) return {State::kOk, kCheck, versions, ""};
  if (status.code() == StatusCode::kUnsupportedVersion) {
    return {State::kProblem, kCheck, status.message(),
            "use the modcache that wrote it, choose another directory, or delete this one"};
  }
  if (status.code() != StatusCode::kCorruption) {
    return {State::kNote, kCheck, "cannot be asked now: " + status.message(), ""};
  }
  return {State::kProblem, kCheck, status.message(),
          "modcache verify '" + path + "' --fix makes it anew from the segments"};
}

Finding check_clock(const DiskFiles& files, std::int64_t last_stored_at_us, std::int64_t now_us) {
  constexpr const char* kCheck = "clock";
  const std::string now = "it is " + local_time_text(now_us);
  const std::string cure =
      "set the clocks of the machines that use the directory (NTP): max_age "
      "goes by them";
  std::vector<std::string> early;
  for (const DiskFile& file : files.files()) {
    if (file.modified_us > now_us + kClockToleranceUs) early.push_back(file.name);
  }
  if (!early.empty()) {
    return {State::kProblem, kCheck, now + ", and of a later time are " + some_of(early), cure};
  }
  if (last_stored_at_us > now_us + kClockToleranceUs) {
    return {State::kProblem, kCheck,
            now + ", and an entry was stored at " + local_time_text(last_stored_at_us), cure};
  }
  return {State::kOk, kCheck, now, ""};
}

Finding check_leftovers(const DiskFiles& files, std::int64_t now_us) {
  constexpr const char* kCheck = "leftover files";
  std::vector<std::string> abandoned;
  std::vector<std::string> unknown;
  std::vector<std::string> retired;
  for (const DiskFile& file : files.files()) {
    const bool is_old = now_us - file.modified_us > kAbandonedAfterUs;
    if (file.kind == DiskFile::Kind::kInTheMaking && is_old) abandoned.push_back(file.name);
    if (file.kind == DiskFile::Kind::kUnknown) unknown.push_back(file.name);
    if (file.kind == DiskFile::Kind::kRetiredSegment) retired.push_back(file.name);
  }
  if (!unknown.empty()) {
    return {State::kNote, kCheck, "not of modcache: " + some_of(unknown),
            "move them elsewhere: files among them take room of the budget"};
  }
  if (!abandoned.empty()) {
    return {State::kNote, kCheck, "begun and never finished: " + some_of(abandoned),
            "programs that write remove them; you may, too"};
  }
  if (!retired.empty()) {
    return {State::kNote, kCheck,
            plural(retired.size(), "removed segment") + " that somebody reads",
            "they go once nobody does"};
  }
  return {State::kOk, kCheck, "none", ""};
}

Finding check_processes(const std::string& directory) {
  namespace files = std::filesystem;
  std::error_code error;
  const std::string inside = files::canonical(directory, error).string() + '/';
  std::vector<std::string> processes;
  for (const auto& process : files::directory_iterator("/proc", error)) {
    const std::string name = process.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (name == std::to_string(::getpid())) continue;
    std::error_code ignored;  // the descriptors of other users' processes cannot be listed
    for (const auto& open : files::directory_iterator(process.path() / "fd", ignored)) {
      if (files::read_symlink(open.path(), ignored).string().rfind(inside, 0) != 0) continue;
      std::ifstream command(process.path() / "comm");
      std::string title;
      std::getline(command, title);
      processes.push_back(name + " (" + printable(title) + ')');
      break;
    }
  }
  Finding finding{State::kOk, "processes", "none has it open", ""};
  if (!processes.empty()) {
    finding.found = std::to_string(processes.size()) +
                    (processes.size() == 1 ? " has it open: " : " have it open: ") +
                    some_of(processes);
  }
  if (::geteuid() != 0) finding.found += "; other users' cannot be seen";
  return finding;
}

Finding judge_limits(std::int64_t open_files, std::int64_t mappings) {
  constexpr const char* kCheck = "limits";
  const std::string found = (open_files < 0 ? "unlimited" : count_text(open_files)) +
                            " open files, " + (mappings < 0 ? "unknown" : count_text(mappings)) +
                            " mappings for a process";
  // A process keeps up to 512 segments open, each with a mapping.
  if (open_files >= 0 && open_files < 1024) {
    return {State::kProblem, kCheck, found, "ulimit -n 4096, or LimitNOFILE= of the service"};
  }
  if (mappings >= 0 && mappings < 65530) {
    return {State::kProblem, kCheck, found, "sysctl vm.max_map_count=65530, or io=pread"};
  }
  return {State::kOk, kCheck, found, ""};
}

Finding check_limits() {
  struct rlimit limit {};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const bool is_bounded = is_known && limit.rlim_cur != RLIM_INFINITY;
  std::int64_t mappings = -1;
  std::ifstream file("/proc/sys/vm/max_map_count");
  if (!(file >> mappings)) mappings = -1;
  return judge_limits(is_bounded ? static_cast<std::int64_t>(limit.rlim_cur) : -1, mappings);
}

Finding check_settings(std::int64_t& budget_bytes) {
  std::vector<std::string> warnings;
  const cache::Settings settings = cache::settings_from_environment(warnings);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  budget_bytes = static_cast<std::int64_t>(std::min(settings.disk_bytes, kMost));
  if (warnings.empty()) {
    return {State::kOk, "environment", "what MODCACHE_* says is valid", ""};
  }
  return {State::kProblem, "environment", warnings.front(), "the default is used until it is"};
}

Finding judge_installation(const Installation& installation) {
  constexpr const char* kCheck = "installation";
  const auto library = library_for(installation, "");
  if (!library.is_ok()) return {State::kNote, kCheck, library.status().message(), ""};
  std::string found =
      "libmodcache.so for torch " +
      (library.value().torch.empty() ? "of unknown version" : library.value().torch);
  if (installation.torch.empty()) return {State::kOk, kCheck, std::move(found), ""};
  // The rest is about the Python package.
  const std::vector<std::string>& pythons = installation.pythons;
  found += pythons.empty() ? ", no compiled part" : ", compiled part for Python " + joined(pythons);
  const std::string& here = installation.python;
  if (here.empty() || std::find(pythons.begin(), pythons.end(), here) != pythons.end()) {
    return {State::kOk, kCheck, std::move(found), ""};
  }
  return {State::kNote, kCheck, found + ", and this is Python " + here,
          "eager modules are looked at more slowly; an installation from the sources has the part"};
}

Finding check_installation() {
  auto installation = find_installation();
  if (installation.is_ok()) return judge_installation(installation.value());
  return {State::kNote, "installation", installation.status().message(), ""};
}

}  // namespace modcache::command_line
