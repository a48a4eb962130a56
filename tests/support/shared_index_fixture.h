// SPDX-License-Identifier: Apache-2.0
//
// Short words for tests of the shared index: entries whose place tells their sequence.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/shared_index/shared_index.h"
#include "support/temporary_directory.h"

namespace modcache::testing {

inline Digest128 address(std::uint64_t number) {
  return xxh3_128({reinterpret_cast<const char*>(&number), sizeof number});
}

inline store::SharedIndex::Change added(const Digest128& at, store::Sequence sequence,
                                        store::Sequence instead_of = 0) {
  store::SharedIndex::Change change;
  change.address = at;
  change.segment = 100 + sequence % 3;
  change.offset = 64 * sequence;
  change.sequence = sequence;
  change.size_bytes = 64;
  change.instead_of = instead_of;
  return change;
}

inline store::SharedIndex::Change removed(const Digest128& at, store::Sequence sequence) {
  store::SharedIndex::Change change;
  change.address = at;
  change.sequence = sequence;
  return change;
}

// One process's view of a directory.
struct View {
  View(const store::Directory& directory, store::ReadVia read_via = store::ReadVia::kMmap,
       bool is_writable = true)
      : control(store::ControlPage::open(directory.file_system(), directory.control_path(),
                                         read_via, is_writable)
                    .value()),
        index(directory, control.get(), database, read_via, is_writable) {}

  void write(const std::vector<store::SharedIndex::Change>& changes,
             store::Sequence last_sequence = 0) {
    index.begin();
    index.apply(changes);
    index.commit(last_sequence);
  }
  store::SharedIndex::Answer ask(const Digest128& at) const {
    store::SharedIndex::Slot slot;
    return index.find(at, slot);
  }
  // Afterwards the entry's usage is this one, if it has the sequence.
  void note_use(const Digest128& at, store::Sequence sequence, policy::Usage usage) {
    index.note_uses(std::span<const Digest128>(&at, 1),
                    std::span<const store::Sequence>(&sequence, 1),
                    [usage](std::size_t, policy::Usage) { return usage; });
  }
  // 0: it is not found.
  store::Sequence sequence(const Digest128& at) const {
    store::SharedIndex::Slot slot;
    if (index.find(at, slot) != store::SharedIndex::Answer::kFound) return 0;
    EXPECT_EQ(slot.offset, 64 * slot.sequence);
    EXPECT_EQ(slot.segment, 100 + slot.sequence % 3);
    EXPECT_EQ(slot.tag, at.high);
    return slot.sequence;
  }

  fs::FileInfo database;
  std::unique_ptr<store::ControlPage> control;
  store::SharedIndex index;
};

class SharedIndexTest : public ::testing::Test {
 protected:
  SharedIndexTest() {
    EXPECT_TRUE(
        store::ControlPage::create(directory_.file_system(), directory_.control_path(), 1).is_ok());
    View(directory_).index.reset(0);
  }

  TemporaryDirectory path_;
  const store::Directory directory_{fs::posix_file_system(), path_.path()};
};

}  // namespace modcache::testing
