// SPDX-License-Identifier: Apache-2.0
//
// ModePage: the mode of one directory (directory_mode.h) for a process that asks at each of its
// calls. While the directory has a control page, asking is one atomic load of the mapped page
// (ReadVia::kPread: one read), also in forked children; while it has none, one stat of it. The
// first question opens the page, for reading, and nothing else is ever opened.
//
// A page that was made anew is noticed by the next question, since its maker marks the old one.
// Only where the file was removed behind our back is that noticed by one of the next
// kQuestionsBetweenLooks questions.
//
// Thread-safe. What was mapped stays mapped until the object dies: threads may be reading it.
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
#include "store/directory.h"

namespace modcache::store {

class ModePage {
 public:
  static constexpr std::uint32_t kQuestionsBetweenLooks = 1024;

  // Opens nothing. `file_system` must outlive it. `directory` may be empty: none is used, nothing
  // is asked, and the mode is kOn.
  ModePage(fs::FileSystem& file_system, std::string directory, ReadVia read_via);
  ~ModePage();
  ModePage(const ModePage&) = delete;
  ModePage& operator=(const ModePage&) = delete;

  // kOn also where nothing can be read, and for a pack. A word that is no mode's is one line in the
  // log.
  DirectoryMode mode();

  // Closes what is open until the next question. (What is mapped holds no descriptor.)
  void let_go();

 private:
  using Word = std::atomic<ModeWord>;

  DirectoryMode look();
  DirectoryMode open(const fs::FileInfo& file) MODCACHE_REQUIRES(mutex_);
  std::shared_ptr<const ControlPage> read_page();
  DirectoryMode judged(ModeWord word) const;

  const Directory directory_;
  const ReadVia read_via_;
  // What a question loads; null: look.
  std::atomic<const Word*> word_{nullptr};
  // There was no page when somebody last looked, nor one of before in use.
  std::atomic<bool> is_absent_{false};

  Mutex mutex_;
  // Of the page that was opened last, or could not be; the mode that one had is `last_mode_`.
  fs::FileInfo looked_at_ MODCACHE_GUARDED_BY(mutex_);
  DirectoryMode last_mode_ MODCACHE_GUARDED_BY(mutex_) = DirectoryMode::kOn;
  std::shared_ptr<const ControlPage> page_ MODCACHE_GUARDED_BY(mutex_);  // ReadVia::kPread
  std::vector<std::shared_ptr<fs::Mapping>> mappings_ MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_ticket_;
};

}  // namespace modcache::store
