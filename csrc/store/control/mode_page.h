// SPDX-License-Identifier: Apache-2.0
//
// ModePage: the mode of one directory (directory_mode.h) for a process that asks at each of its
// calls. While the directory has a control page, asking is one atomic load of the mapped page
// (ReadVia::kPread: one read), also in forked children; while it has none, it is one stat. The
// first question opens the page for reading; nothing else is ever opened.
//
// The next question notices a recreated page, since its creator marks the old one. If the file was
// removed by other means, one of the next kQuestionsBetweenLooks questions notices it.
//
// Thread-safe. Mappings stay until the object is destroyed, as threads may be reading them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "fs/file_system.h"
#include "store/control/control_page.h"
#include "store/control/directory_mode.h"
#include "store/directory/directory.h"
#include "store/entry/options.h"

namespace modcache::store {

class ModePage {
 public:
  static constexpr std::uint32_t kQuestionsBetweenLooks = 1024;

  // Opens nothing. `file_system` must outlive this object. `directory` may be empty, which means
  // that there is none: the mode is kOn, and nothing is asked.
  ModePage(fs::FileSystem& file_system, std::string directory, ReadVia read_via);
  ~ModePage();
  ModePage(const ModePage&) = delete;
  ModePage& operator=(const ModePage&) = delete;

  // Returns kOn also where nothing can be read, and for a pack. A word that is not a mode's is
  // logged once.
  DirectoryMode mode();

  // Closes what is open until the next question. (Mappings hold no descriptor.)
  void let_go();

 private:
  using Word = std::atomic<ModeWord>;

  DirectoryMode look();
  DirectoryMode open(const fs::FileInfo& file) MODCACHE_REQUIRES(mutex_);
  std::shared_ptr<const ControlPage> read_page();
  DirectoryMode judged(ModeWord word) const;

  const Directory directory_;
  const ReadVia read_via_;
  // The word that a question loads; null: look at the files.
  std::atomic<const Word*> word_{nullptr};
  // The last look found no page, and none was in use before.
  std::atomic<bool> is_absent_{false};

  Mutex mutex_;
  // The page that was opened last, or could not be opened; `last_mode_` is its mode.
  fs::FileInfo looked_at_ MODCACHE_GUARDED_BY(mutex_);
  DirectoryMode last_mode_ MODCACHE_GUARDED_BY(mutex_) = DirectoryMode::kOn;
  std::shared_ptr<const ControlPage> page_ MODCACHE_GUARDED_BY(mutex_);  // ReadVia::kPread
  std::vector<std::shared_ptr<fs::Mapping>> mappings_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_registration_;
};

}  // namespace modcache::store
