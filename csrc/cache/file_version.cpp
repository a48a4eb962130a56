// SPDX-License-Identifier: Apache-2.0
#include "cache/file_version.h"

#include <limits.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "fs/change_time.h"
#include "fs/posix_file_system.h"

namespace modcache::cache {
namespace {

constexpr std::int64_t kMillisecondNs = 1'000'000;
constexpr std::size_t kReadSizeBytes = 1 << 20;

std::int64_t steady_now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

bool is_same_version(const fs::FileInfo& a, const fs::FileInfo& b) {
  return a.is_same_file(b) && a.size_bytes == b.size_bytes && a.modified_ns == b.modified_ns &&
         a.changed_ns == b.changed_ns;
}

std::string about(const FileVersion& version) { return "file " + version.path; }

// Returns a text that is the same for one version of a file and differs for every other.
std::string marks_of(const fs::FileInfo& info) {
  std::string marks;
  for (const std::uint64_t mark :
       {info.size_bytes, info.device, info.inode, static_cast<std::uint64_t>(info.modified_ns),
        static_cast<std::uint64_t>(info.changed_ns)}) {
    marks += std::to_string(mark) + ' ';
  }
  return marks;
}

std::optional<std::string> noted_digest(const FileVersion& version, Cache& cache, Mode mode) {
  const auto note = cache.find_note(about(version), mode);
  const std::string marks = marks_of(version.info);
  if (!note.has_value() || note->size() != marks.size() + 32) return std::nullopt;
  if (note->compare(0, marks.size(), marks) != 0) return std::nullopt;
  return note->substr(marks.size());
}

Result<std::string> read_digest(const FileVersion& version) {
  MODCACHE_ASSIGN_OR_RETURN(
      auto opened, fs::posix_file_system().open(version.path, fs::OpenMode::kReadFollowing));
  const fs::File& file = *opened;
  Xxh3Hasher hasher;
  std::vector<char> part(kReadSizeBytes);
  std::uint64_t offset = 0;
  while (true) {
    MODCACHE_ASSIGN_OR_RETURN(auto count, file.read_at(offset, part.data(), part.size()));
    hasher.update(part.data(), count);
    offset += count;
    if (count < part.size()) break;
  }
  MODCACHE_ASSIGN_OR_RETURN(auto after, file.info());
  if (!is_same_version(after, version.info)) {
    return Status::busy("'" + version.path + "' was changed while it was read");
  }
  return hasher.digest().hex();
}

}  // namespace

bool FileVersion::is_same(const FileVersion& other) const {
  return path == other.path && is_same_version(info, other.info);
}

void FileVersion::take_over(const FileVersion& earlier) {
  const std::int64_t looked_ns = seen_ns;
  seen_ns = earlier.seen_ns;
  if (looked_ns - seen_ns > fs::tick_ns(info)) is_settled = true;
}

std::string absolute_path(const std::string& path) {
  if (!path.empty() && path.front() == '/') return path;
  char here[PATH_MAX];
  if (::getcwd(here, sizeof here) == nullptr) return path;
  return std::string(here) + '/' + path;
}

Result<FileVersion> look_at(const std::string& path) {
  FileVersion version;
  version.path = absolute_path(path);
  MODCACHE_ASSIGN_OR_RETURN(version.info, fs::posix_file_system().info(version.path));
  version.seen_ns = steady_now_ns();  // after the look: what is read from now on is newer
  if (version.info.is_directory) {
    return Status::invalid_argument("'" + version.path + "' is a directory");
  }
  version.is_settled = fs::is_settled(version.info);
  return version;
}

Result<FileVersion> look_at_settled(const std::string& path) {
  auto version = look_at(path);
  if (!version.is_ok() || version.value().is_settled) return version;
  const fs::FileInfo& info = version.value().info;
  const std::int64_t age_ns = now_ns() - info.changed_ns;
  const bool is_soon = fs::has_short_ticks(info) && age_ns >= 0 && age_ns <= fs::kShortTickNs;
  if (!is_soon) return look_at(path);
  std::this_thread::sleep_for(std::chrono::nanoseconds(fs::kShortTickNs - age_ns + kMillisecondNs));
  return look_at(path);
}

Result<std::string> digest_of(const FileVersion& version, Cache& cache, Mode mode) {
  if (auto noted = noted_digest(version, cache, mode)) return *std::move(noted);
  auto digest = read_digest(version);
  if (digest.is_ok() && version.is_settled) {
    cache.keep_note(about(version), marks_of(version.info) + digest.value(), mode);
  }
  return digest;
}

}  // namespace modcache::cache
