// SPDX-License-Identifier: Apache-2.0
#include "support/disk_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace modcache::testing {
namespace {

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

void write_into(std::string& contents, std::uint64_t offset, std::string_view bytes) {
  if (contents.size() < offset + bytes.size()) contents.resize(offset + bytes.size(), '\0');
  std::copy(bytes.begin(), bytes.end(), contents.begin() + static_cast<std::ptrdiff_t>(offset));
}

bool is_heads(std::mt19937_64& random) { return (random() & 1) != 0; }

}  // namespace

DiskModel::InodePtr DiskModel::open(const std::string& path, bool may_create) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = live_.find(path);
  if (known != live_.end()) return known->second;
  if (!may_create || !is_below_root(path)) return nullptr;
  auto file = std::make_shared<Inode>();
  live_[path] = file;
  pending_.push_back({path, "", file});
  return file;
}

void DiskModel::write(const InodePtr& file, std::uint64_t offset, std::string_view bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file != nullptr) file->pending.push_back({false, offset, std::string(bytes)});
}

void DiskModel::truncate(const InodePtr& file, std::uint64_t size_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file != nullptr) file->pending.push_back({true, size_bytes, ""});
}

void DiskModel::sync(const InodePtr& file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file == nullptr) return;
  for (const Change& change : file->pending) {
    if (change.is_truncation) {
      file->durable.resize(change.offset, '\0');
    } else {
      write_into(file->durable, change.offset, change.bytes);
    }
  }
  file->pending.clear();
}

void DiskModel::map(const InodePtr& file, const std::shared_ptr<fs::Mapping>& mapping) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file != nullptr) file->mapping = mapping;
}

void DiskModel::make_directory(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_below_root(path) || live_.count(path) != 0) return;
  auto folder = std::make_shared<Inode>();
  folder->is_directory = true;
  live_[path] = folder;
  pending_.push_back({path, "", folder});
}

void DiskModel::rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = live_.find(from);
  if (known == live_.end()) return;
  pending_.push_back({to, from, known->second});
  apply(pending_.back(), live_);
}

void DiskModel::remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (live_.erase(path) != 0) pending_.push_back({path, "", nullptr});
}

void DiskModel::sync_directory(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Naming> left;
  for (const Naming& naming : pending_) {
    if (folder_of(naming.path) == path) {
      apply(naming, durable_);
    } else {
      left.push_back(naming);
    }
  }
  pending_ = std::move(left);
}

void DiskModel::apply(const Naming& naming, Names& names) {
  if (!naming.from.empty()) names.erase(naming.from);
  if (naming.file == nullptr) {
    names.erase(naming.path);
  } else {
    names[naming.path] = naming.file;
  }
}

DiskModel::Names DiskModel::names_after(std::mt19937_64& random) const {
  Names names = durable_;
  const bool keep_order = is_heads(random);
  std::size_t count = random() % (pending_.size() + 1);
  if (random() % 4 == 0) count = 0;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (keep_order ? i < count : is_heads(random)) apply(pending_[i], names);
  }
  return names;
}

std::string DiskModel::contents_after(const Inode& file, std::mt19937_64& random) {
  std::vector<Change> changes = file.pending;
  if (const auto mapping = file.mapping.lock()) {
    const char* data = reinterpret_cast<const char*>(mapping->data());
    changes.push_back({false, 0, std::string(data, mapping->size_bytes())});
  }
  std::string contents = file.durable;
  const std::uint64_t sector = is_heads(random) ? 512 : 4096;
  const bool keep_order = is_heads(random);
  // Nothing, everything, or something in between.
  const std::uint64_t extent = random() % 4;
  const std::size_t count = extent == 0   ? 0
                            : extent == 1 ? changes.size()
                                          : random() % (changes.size() + 1);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (keep_order ? i > count : extent == 0) continue;
    // In order, the last one is torn.
    const bool is_torn = keep_order ? i == count : extent != 1;
    const Change& change = changes[i];
    if (change.is_truncation) {
      if (!is_torn || is_heads(random)) contents.resize(change.offset, '\0');
      continue;
    }
    for (std::uint64_t done = 0; done < change.bytes.size();) {
      const std::uint64_t offset = change.offset + done;
      const std::uint64_t size =
          std::min<std::uint64_t>(sector - offset % sector, change.bytes.size() - done);
      if (!is_torn || is_heads(random)) {
        write_into(contents, offset, std::string_view(change.bytes).substr(done, size));
      }
      done += size;
    }
  }
  return contents;
}

void DiskModel::lose_power(std::uint64_t seed, const std::string& target) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::mt19937_64 random(seed);
  std::filesystem::create_directories(target);
  const Names names = names_after(random);
  const auto is_there = [&](const std::string& folder) {
    return folder == root_ || names.count(folder) != 0;
  };
  for (const auto& [path, file] : names) {  // a folder comes before what lies in it
    bool is_reachable = true;
    for (std::string folder = folder_of(path); folder.size() >= root_.size() && is_reachable;
         folder = folder_of(folder)) {
      is_reachable = is_there(folder);
    }
    if (!is_reachable) continue;
    const std::string place = target + path.substr(root_.size());
    if (file->is_directory) {
      std::filesystem::create_directory(place);
    } else {
      const std::string contents = contents_after(*file, random);
      std::ofstream(place, std::ios::binary) << contents;
    }
  }
}

}  // namespace modcache::testing
