// SPDX-License-Identifier: Apache-2.0
#include "store/directory/notes.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"

namespace modcache::store {
namespace {

constexpr std::string_view kTitle = "modcache note 1\n";
constexpr std::size_t kMaxFileSize = kMaxNoteSizeBytes + 128;

std::string path_of(const Directory& directory, std::string_view about) {
  return directory.notes_path() + '/' + blake2b_128(about).hex();
}

// The file's bytes: title, checksum of the rest, the length of `about`, and both texts.
std::string written(std::string_view about, std::string_view text) {
  std::string rest = std::to_string(about.size()) + '\n';
  rest.append(about).append("\n").append(text);
  return std::string(kTitle) + xxh3_128(rest).hex() + '\n' + rest;
}

std::optional<std::string> text_in(std::string_view file, std::string_view about) {
  const std::size_t frame = written(about, "").size();
  if (file.size() < frame || file.size() > kMaxFileSize) return std::nullopt;
  std::string text(file.substr(frame));
  if (file != written(about, text)) return std::nullopt;
  return text;
}

// Reads at most one byte more than a note may have, which is enough to see that it is too long.
Result<std::string> read_note_file(const Directory& directory, const std::string& path) {
  MODCACHE_ASSIGN_OR_RETURN(auto file, directory.file_system().open(path, fs::OpenMode::kRead));
  MODCACHE_ASSIGN_OR_RETURN(auto info, file->info());
  std::string bytes(std::min<std::uint64_t>(info.size_bytes, kMaxFileSize) + 1, '\0');
  MODCACHE_ASSIGN_OR_RETURN(auto size, file->read_at(0, bytes.data(), bytes.size()));
  bytes.resize(size);
  return bytes;
}

struct Note {
  std::string_view about;
  std::string text;
};

// Returns the note in the file `name`, if its bytes are exactly one.
std::optional<Note> note_in(std::string_view name, std::string_view bytes) {
  // Title, checksum, length of `about`.
  if (bytes.substr(0, kTitle.size()) != kTitle) return std::nullopt;
  const std::string_view rest = bytes.substr(kTitle.size());
  const std::size_t size_begins = rest.find('\n') + 1;
  const std::size_t size_ends = rest.find('\n', size_begins);
  if (size_begins == 0 || size_ends == std::string_view::npos) return std::nullopt;
  std::size_t size = 0;
  for (const char digit : rest.substr(size_begins, size_ends - size_begins)) {
    if (digit < '0' || digit > '9' || size > kMaxNoteSizeBytes) return std::nullopt;
    size = 10 * size + static_cast<std::size_t>(digit - '0');
  }
  const std::string_view texts = rest.substr(size_ends + 1);
  if (size > texts.size()) return std::nullopt;
  const std::string_view about = texts.substr(0, size);
  auto text = text_in(bytes, about);
  if (!text.has_value() || blake2b_128(about).hex() != name) return std::nullopt;
  return Note{about, *std::move(text)};
}

// Returns a path that no other writer uses, in any process.
std::string path_in_the_making(const std::string& path) {
  static std::atomic<std::uint64_t> made{0};
  return path + '.' + std::to_string(::getpid()) + '-' + std::to_string(made.fetch_add(1)) + ".new";
}

// No writer takes as long as this.
constexpr std::int64_t kAbandonedAfterNs = 3'600'000'000'000;

bool is_in_the_making(const std::string& name) {
  return name.size() > 4 && name.compare(name.size() - 4, 4, ".new") == 0;
}

struct NoteFile {
  std::int64_t modified_ns = 0;
  std::string path;
  std::uint64_t size_bytes = 0;
};

// Returns all but the one at `spared`, the oldest first. Removes abandoned temporary files.
std::vector<NoteFile> note_files(const Directory& directory, const std::vector<std::string>& names,
                                 const std::string& spared) {
  fs::FileSystem& file_system = directory.file_system();
  std::vector<NoteFile> files;
  for (const std::string& name : names) {
    const std::string path = directory.notes_path() + '/' + name;
    const auto info = file_system.info(path);
    if (!info.is_ok() || path == spared) continue;
    if (!is_in_the_making(name)) {
      files.push_back({info.value().modified_ns, path, info.value().size_bytes});
    } else if (now_ns() - info.value().modified_ns > kAbandonedAfterNs) {
      (void)file_system.remove(path);
    }
  }
  std::sort(files.begin(), files.end(), [](const NoteFile& one, const NoteFile& other) {
    return std::tie(one.modified_ns, one.path) < std::tie(other.modified_ns, other.path);
  });
  return files;
}

// Makes room for the note at `path`, so that the others take `most_bytes` at most. If another
// process removes a file first, that is as good.
void make_room(const Directory& directory, const std::string& path, std::uint64_t most_bytes) {
  const auto names = directory.file_system().list(directory.notes_path());
  if (!names.is_ok()) return;
  // The size need not be summed while the number of notes rules out that they are too many.
  const std::size_t count = names.value().size();
  const bool may_be_too_many = count >= kMostNotes || count > most_bytes / kMaxFileSize;
  if (!may_be_too_many &&
      std::none_of(names.value().begin(), names.value().end(), is_in_the_making)) {
    return;
  }
  const std::vector<NoteFile> files = note_files(directory, names.value(), path);
  std::uint64_t size_bytes = 0;
  for (const NoteFile& file : files) size_bytes += file.size_bytes;
  const std::size_t too_many = files.size() >= kMostNotes ? files.size() / 2 : 0;
  for (std::size_t i = 0; i < files.size() && (i < too_many || size_bytes > most_bytes); ++i) {
    if (directory.file_system().remove(files[i].path).is_ok()) size_bytes -= files[i].size_bytes;
  }
}

}  // namespace

bool is_whole_note(std::string_view name, std::string_view bytes) {
  return note_in(name, bytes).has_value();
}

Result<bool> is_whole_note(const Directory& directory, const std::string& name) {
  MODCACHE_ASSIGN_OR_RETURN(auto bytes,
                            read_note_file(directory, directory.notes_path() + '/' + name));
  return is_whole_note(name, bytes);
}

Result<std::string> find_note(const Directory& directory, std::string_view about) {
  const std::string path = path_of(directory, about);
  MODCACHE_ASSIGN_OR_RETURN(auto bytes, read_note_file(directory, path));
  auto text = text_in(bytes, about);
  if (!text.has_value()) return Status::not_found("'" + path + "' is no whole note");
  return *std::move(text);
}

Status visit_notes(
    const Directory& directory,
    const std::function<void(std::string_view about, std::string_view text)>& visit) {
  const auto names = directory.file_system().list(directory.notes_path());
  if (names.is_not_found()) return Status::ok();
  if (!names.is_ok()) return names.status();
  for (const std::string& name : names.value()) {
    const auto bytes = read_note_file(directory, directory.notes_path() + '/' + name);
    if (!bytes.is_ok()) continue;
    if (const auto note = note_in(name, bytes.value())) visit(note->about, note->text);
  }
  return Status::ok();
}

Status keep_note(const Directory& directory, std::string_view about, std::string_view text,
                 std::uint64_t most_bytes) {
  if (about.size() + text.size() > kMaxNoteSizeBytes) {
    return Status::invalid_argument("a note has at most " + std::to_string(kMaxNoteSizeBytes) +
                                    " bytes");
  }
  fs::FileSystem& file_system = directory.file_system();
  MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory.notes_path()));
  const std::string path = path_of(directory, about);
  const std::string making = path_in_the_making(path);
  const std::string bytes = written(about, text);
  if (bytes.size() > most_bytes) return Status::ok();
  make_room(directory, path, most_bytes - bytes.size());
  {
    MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(making, fs::OpenMode::kCreateExclusive));
    const Status status = file->write_at(0, {{bytes.data(), bytes.size()}});
    if (!status.is_ok()) {
      (void)file_system.remove(making);
      return status;
    }
  }
  return file_system.rename(making, path);
}

Status clear_notes(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  const auto names = file_system.list(directory.notes_path());
  if (names.status().is_not_found()) return Status::ok();
  if (!names.is_ok()) return names.status();
  for (const std::string& name : names.value()) {
    MODCACHE_RETURN_IF_ERROR(file_system.remove(directory.notes_path() + '/' + name));
  }
  return Status::ok();
}

}  // namespace modcache::store
