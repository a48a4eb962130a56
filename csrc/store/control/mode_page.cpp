// SPDX-License-Identifier: Apache-2.0
#include "store/control/mode_page.h"

#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "fs/change_time.h"
#include "store/entry/options.h"

namespace modcache::store {
namespace {

// The word of a directory that cannot have a page.
const std::atomic<ModeWord> kNoMode{kNoModeWord};

thread_local std::uint32_t questions = 0;

bool is_file(const Result<fs::FileInfo>& info) {
  return info.is_ok() && !info.value().is_directory;
}

}  // namespace

ModePage::ModePage(fs::FileSystem& file_system, std::string directory, ReadVia read_via)
    : directory_(file_system, std::move(directory)),
      read_via_(read_via),
      word_(directory_.path().empty() ? &kNoMode : nullptr),
      fork_registration_(hold_across_fork(mutex_)) {}

ModePage::~ModePage() { stop_holding_across_fork(fork_registration_); }

DirectoryMode ModePage::mode() {
  const bool is_look_due = ++questions % kQuestionsBetweenLooks == 0;
  ModeWord now = kSupersededModeWord;
  if (const Word* const word = word_.load(std::memory_order_acquire)) {
    now = word->load(std::memory_order_acquire);
  } else if (read_via_ == ReadVia::kPread) {
    if (const auto page = read_page()) now = page->mode_word();
  }
  const auto mode = mode_in(now);
  return mode.has_value() && !is_look_due ? *mode : look();
}

std::shared_ptr<const ControlPage> ModePage::read_page() {
  MutexLock lock(mutex_);
  return page_;
}

DirectoryMode ModePage::look() {
  if (directory_.path().empty()) return DirectoryMode::kOn;
  fs::FileSystem& file_system = directory_.file_system();
  const auto file = file_system.info(directory_.control_path());
  const bool is_absent = file.is_not_found();
  if (is_absent && is_absent_.load(std::memory_order_acquire)) return DirectoryMode::kOn;
  MutexLock lock(mutex_);
  is_absent_.store(is_absent, std::memory_order_release);
  if (file.is_ok()) return open(file.value());
  // The path of a page below a file is not that of a missing page: the directory may be a pack.
  const bool is_pack = !is_absent && is_file(file_system.info(directory_.path()));
  word_.store(is_pack ? &kNoMode : nullptr, std::memory_order_release);
  page_ = nullptr;
  looked_at_ = {};
  return DirectoryMode::kOn;
}

DirectoryMode ModePage::open(const fs::FileInfo& file) {
  const Word* const word = word_.load(std::memory_order_relaxed);
  if (file.is_same_file(looked_at_)) {
    if (word != nullptr) return judged(word->load(std::memory_order_acquire));
    if (page_ != nullptr) return judged(page_->mode_word());
    // It could not be opened, and nobody has repaired it since.
    if (file.changed_ns == looked_at_.changed_ns) return last_mode_;
  }
  word_.store(nullptr, std::memory_order_release);
  page_ = nullptr;
  looked_at_ = file;
  // A repair within the same tick would otherwise go unnoticed.
  if (!fs::is_settled(file)) looked_at_.changed_ns = 0;
  fs::FileSystem& file_system = directory_.file_system();
  const std::string path = Directory::at(file_system, directory_.path()).control_path();
  auto opened = ControlPage::open(file_system, path, read_via_, false);
  if (!opened.is_ok()) {
    const bool is_damaged = opened.status().code() == StatusCode::kCorruption;
    last_mode_ = is_damaged ? ControlPage::mode_in_remains(file_system, path) : DirectoryMode::kOn;
    return last_mode_;
  }
  std::shared_ptr<const ControlPage> page = std::move(opened).value();
  looked_at_ = page->identity();
  const DirectoryMode mode = judged(page->mode_word());
  if (read_via_ == ReadVia::kPread) {
    page_ = std::move(page);
  } else {
    mappings_.push_back(page->mapping());
    word_.store(&page->mapped_mode_word(), std::memory_order_release);
  }
  return mode;
}

DirectoryMode ModePage::judged(ModeWord word) const {
  if (const auto mode = mode_in(word)) return *mode;
  log_once(LogLevel::kWarning, "mode:" + directory_.path(),
           "the control page of '" + directory_.path() +
               "' names a mode that is none; it is taken for 'on' (modcache mode on|read|off "
               "DIR sets another)");
  return DirectoryMode::kOn;
}

void ModePage::let_go() {
  MutexLock lock(mutex_);
  if (page_ == nullptr) return;
  page_ = nullptr;
  looked_at_ = {};
}

}  // namespace modcache::store
