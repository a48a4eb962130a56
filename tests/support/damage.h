// SPDX-License-Identifier: Apache-2.0
//
// Random damage to the files of a directory, reproducible by its seed.
#pragma once

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/hash.h"
#include "fs/posix_file_system.h"
#include "store/index/database.h"
#include "support/directory_bytes.h"
#include "support/sealing.h"

namespace modcache::testing {

class Damage {
 public:
  enum class Kind {
    kFlipBits,
    kOverwrite,
    kZeroPage,
    kTruncate,
    kAppend,
    kSwapFiles,
    kDeleteFile,
    kOlderFile,
    kDeleteRows,
    kRedirectRows,
    kCopyRows,
    kNewerVersion,
  };
  static constexpr int kKinds = 12;

  // `older`: the same directory as it was before, whose files may come back.
  Damage(std::string directory, std::string older, std::uint64_t seed)
      : directory_(std::move(directory)), older_(std::move(older)), random_(seed) {}

  // While others have the files open: nothing is cut short, and what is mapped is not written to.
  void spare_open_files() { spares_open_files_ = true; }

  // Does one, and says which. An empty text: there was nothing to do it to.
  std::string inflict() {
    kind_ = static_cast<Kind>(below(kKinds));
    switch (kind_) {
      case Kind::kFlipBits:
        return change_bytes("flip", [this](std::string& bytes, std::size_t at) {
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        });
      case Kind::kOverwrite:
        return change_bytes("overwrite", [this](auto& bytes, std::size_t at) {
          const std::size_t end = std::min(bytes.size(), at + 1 + below(200));
          for (; at < end; ++at) bytes[at] = static_cast<char>(below(256));
        });
      case Kind::kZeroPage:
        return change_bytes("zero", [](auto& bytes, std::size_t at) {
          at = at / 4096 * 4096;
          const std::size_t size = std::min<std::size_t>(bytes.size() - at, 4096);
          bytes.replace(at, size, size, '\0');
        });
      case Kind::kTruncate: return truncate();
      case Kind::kAppend: return append();
      case Kind::kSwapFiles: return swap_files();
      case Kind::kDeleteFile: return delete_file();
      case Kind::kOlderFile: return bring_back_older();
      case Kind::kDeleteRows:
        return change_rows(
            "delete rows",
            {"DELETE FROM entries WHERE R(sequence)%4=0", "DELETE FROM entries",
             "DELETE FROM entries WHERE sequence>(SELECT max(sequence)-9 FROM entries)",
             "DELETE FROM contexts WHERE R(id)%2=0", "DELETE FROM segments WHERE R(id)%2=0",
             "DELETE FROM clears", "DELETE FROM meta"});
      case Kind::kRedirectRows:
        return change_rows(
            "redirect rows",
            {"UPDATE entries SET offset=offset+64 WHERE R(sequence)%5=0",
             "UPDATE entries SET offset=R(sequence+2)*R(sequence+3) WHERE R(sequence)%5=0",
             "UPDATE entries SET offset=(SELECT max(offset) FROM entries) WHERE R(sequence)%5=0",
             "UPDATE entries SET segment_id=(SELECT max(id) FROM segments) WHERE R(sequence)%5=0",
             "UPDATE entries SET segment_id=99 WHERE R(sequence)%9=0",
             "UPDATE entries SET payload_size=R(sequence+2)*R(sequence+3) WHERE R(sequence)%5=0",
             "UPDATE entries SET payload_size=payload_size+1 WHERE R(sequence)%5=0",
             "UPDATE entries SET header_size=R(sequence+2)*R(sequence+3) WHERE R(sequence)%5=0",
             "UPDATE entries SET sequence=R(sequence+2)*R(sequence+3) WHERE R(sequence)%5=0",
             "UPDATE entries SET sequence='text' WHERE R(sequence)%5=0",
             "UPDATE entries SET context_id=1+R(sequence+1)%3 WHERE R(sequence)%9=0",
             "UPDATE segments SET name=printf('%016x',R(id)*R(id))",
             "UPDATE segments SET name='../../../x'", "UPDATE segments SET live_entries=R(id)",
             "UPDATE contexts SET digest=CAST(printf('%016x',R(id)) AS BLOB) WHERE R(id)%2=0",
             "UPDATE contexts SET scope='another'", "UPDATE clears SET sequence=sequence+1000000",
             "UPDATE meta SET value=R(1)*R(2)", "UPDATE meta SET value=1"});
      case Kind::kCopyRows:
        return change_rows(
            "copy rows",
            {"INSERT OR REPLACE INTO entries SELECT context_id, key||'x', segment_id, offset,"
             " header_size, payload_size, sequence, run_us, stored_at_us, replaces FROM entries"
             " WHERE R(sequence)%4=0",
             "INSERT OR REPLACE INTO entries SELECT (SELECT max(id) FROM contexts), key, "
             "segment_id,"
             " offset, header_size, payload_size, sequence, run_us, stored_at_us, replaces"
             " FROM entries WHERE R(sequence)%4=0",
             "UPDATE entries SET (segment_id, offset, header_size, payload_size, sequence)="
             "(SELECT segment_id, offset, header_size, payload_size, sequence FROM entries"
             " ORDER BY R(sequence) LIMIT 1) WHERE R(sequence)%4=0"});
      case Kind::kNewerVersion: return newer_version();
    }
    return "";
  }

  Kind kind() const { return kind_; }

  // Below the directory, sorted, so that a seed means the same each time.
  std::vector<std::string> files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      files.push_back(std::filesystem::relative(entry.path(), directory_).string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::string path_of(const std::string& file) const { return directory_ + "/" + file; }

  std::string any_file() {
    auto files = this->files();
    if (spares_open_files_) {
      files.erase(std::remove_if(files.begin(), files.end(),
                                 [](const std::string& file) {
                                   return file == "control" || file == "index.sqlite-shm" ||
                                          file == "index.map";
                                 }),
                  files.end());
    }
    return files[below(files.size())];
  }

  template <typename Change>
  std::string change_bytes(const std::string& name, Change change) {
    const std::string file = any_file();
    std::string bytes = file_bytes(path_of(file));
    if (bytes.empty()) return "";
    std::string text = name + " " + file;
    const std::size_t times = 1 + below(3);
    for (std::size_t i = 0; i < times; ++i) {
      const std::size_t at = below(bytes.size());
      change(bytes, at);
      text += " " + std::to_string(at);
    }
    // In place, so that whoever has it open sees it.
    std::fstream(path_of(file), std::ios::in | std::ios::out | std::ios::binary) << bytes;
    return text;
  }

  std::string truncate() {
    const std::string file = any_file();
    const auto size = std::filesystem::file_size(path_of(file));
    if (size == 0) return "";
    const auto left = below(size);
    std::filesystem::resize_file(path_of(file), left);
    return "truncate " + file + " to " + std::to_string(left) + " of " + std::to_string(size);
  }

  std::string append() {
    const std::string file = any_file();
    std::string noise(1 + below(5000), '\0');
    for (char& byte : noise) byte = static_cast<char>(below(256));
    std::ofstream(path_of(file), std::ios::binary | std::ios::app) << noise;
    return "append " + std::to_string(noise.size()) + " to " + file;
  }

  std::string swap_files() {
    const std::string one = any_file();
    const std::string other = any_file();
    if (one == other) return "";
    std::filesystem::rename(path_of(one), directory_ + "/swapped");
    std::filesystem::rename(path_of(other), path_of(one));
    std::filesystem::rename(directory_ + "/swapped", path_of(other));
    return "swap " + one + " and " + other;
  }

  std::string delete_file() {
    const auto files = this->files();
    const std::string file = files[below(files.size())];
    std::filesystem::remove(path_of(file));
    return "delete " + file;
  }

  std::string bring_back_older() {
    const std::string file = any_file();
    if (!std::filesystem::exists(older_ + "/" + file)) return "";
    std::filesystem::remove(path_of(file));
    std::filesystem::copy_file(older_ + "/" + file, path_of(file));
    return "older " + file;
  }

  std::string change_rows(const std::string& name, const std::vector<std::string>& changes) {
    auto database = store::Database::open(fs::posix_file_system(), path_of("index.sqlite"),
                                          store::Database::Mode::kWrite, 1000);
    if (!database.is_ok()) return "";
    const std::string seed = std::to_string(below(1000));
    std::string sql = changes[below(changes.size())];
    // SQLite's random() would be another each time: R(x) depends on x and the seed.
    for (std::size_t at = sql.find("R("); at != std::string::npos; at = sql.find("R(", at)) {
      const std::size_t end = sql.find(')', at);
      const std::string of = sql.substr(at + 2, end - at - 2);
      sql.replace(at, end + 1 - at,
                  "(abs((" + of + ")*1103515245+" + seed + "*12345)/1000%1000003)");
    }
    const Status status = database.value()->execute(sql);
    return name + ": " + sql + (status.is_ok() ? "" : " (" + status.message() + ")");
  }

  std::string newer_version() {
    switch (below(4)) {
      case 0: {
        auto database = store::Database::open(fs::posix_file_system(), path_of("index.sqlite"),
                                              store::Database::Mode::kWrite, 1000);
        (void)database.value()->execute("PRAGMA user_version=77");
        return "newer database in the log";
      }
      case 1: {
        auto database = store::Database::open(fs::posix_file_system(), path_of("index.sqlite"),
                                              store::Database::Mode::kWrite, 1000);
        (void)database.value()->execute("PRAGMA user_version=77; PRAGMA wal_checkpoint(TRUNCATE)");
        return "newer database";
      }
      case 2: {
        std::string bytes = file_bytes(path_of("control"));
        bytes.replace(8, 8, std::string("\x4d\x00\x00\x00\xb2\xff\xff\xff", 8));
        std::fstream(path_of("control"), std::ios::in | std::ios::out | std::ios::binary) << bytes;
        return "newer control page";
      }
      default: break;
    }
    const auto segments = segment_files(directory_);
    const std::string segment = *std::min_element(segments.begin(), segments.end());
    std::string bytes = file_bytes(segment);
    bytes[9] = 77;
    seal(bytes, 0, store::kSegmentHeaderSizeBytes);
    write_file(segment, bytes);
    return "newer segment";
  }

  const std::string directory_;
  const std::string older_;
  std::mt19937_64 random_;
  Kind kind_ = Kind::kFlipBits;
  bool spares_open_files_ = false;
};

}  // namespace modcache::testing
