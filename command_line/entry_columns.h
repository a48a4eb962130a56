// SPDX-License-Identifier: Apache-2.0
//
// EntryColumns: the facts about an entry that `ls` and `show` print. With `has_values` the head of
// its record is read and checked; with `checks_values` its bytes are, too.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/cache_directory.h"
#include "command_line/report.h"
#include "store/store.h"

namespace modcache::command_line {

class EntryColumns {
 public:
  EntryColumns(const std::string& directory, bool has_values, bool checks_values = false);

  const std::vector<Column>& columns() const { return columns_; }
  std::vector<Cell> cells(const KnownContext& context, const store::ListedEntry& entry);

  // The number of entries that were read and found damaged or gone.
  std::int64_t damaged() const { return damaged_; }

 private:
  void add_value(const KnownContext& context, const store::ListedEntry& entry,
                 std::vector<Cell>& cells);
  Status check(const store::FoundEntry& found, const store::ListedEntry& entry) const;

  const std::string directory_;
  const bool has_values_;
  const bool checks_values_;
  std::vector<Column> columns_;
  Status opened_;
  std::unique_ptr<store::Store> store_;
  std::int64_t damaged_ = 0;
};

// The order in which people expect names: numbers inside them count as numbers, "img-2" comes
// before "img-10". A total order over bytes of any kind; numbers may have any length.
// Names that are the same but for zeros before numbers come in the order of their bytes.
bool comes_before(std::string_view a, std::string_view b);

}  // namespace modcache::command_line
