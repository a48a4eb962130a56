// SPDX-License-Identifier: Apache-2.0
#include "cache/read_entries.h"

#include <memory>
#include <string>
#include <utility>

namespace modcache::cache {
namespace {

Result<EntryPtr> entry_of(Result<std::shared_ptr<const Value>> value, const FoundRows& found,
                          std::size_t i) {
  MODCACHE_RETURN_IF_ERROR(value.status());
  return EntryPtr(std::make_shared<const Entry>(
      Entry{std::move(value).value(), std::string(found.header(i).signature), found.run_us(i),
            found.stored_at_us(i), InputSample(found.sample(i))}));
}

}  // namespace

std::vector<Result<EntryPtr>> read_entries(const ValueFormat& format, Form form,
                                           const FoundRows& found,
                                           const std::vector<std::size_t>& rows) {
  std::vector<Result<EntryPtr>> entries;
  entries.reserve(rows.size());
  auto values = format.read_all(form, found, rows);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    entries.push_back(entry_of(std::move(values[k]), found, rows[k]));
  }
  return entries;
}

Result<EntryPtr> read_entry_once(const ValueFormat& format, const FoundRows& found,
                                 std::size_t row) {
  return entry_of(format.read_once(found, row), found, row);
}

}  // namespace modcache::cache
