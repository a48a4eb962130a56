// SPDX-License-Identifier: Apache-2.0
#include "cache/read_entries.h"

#include <memory>
#include <string>
#include <utility>

namespace modcache::cache {

std::vector<Result<EntryPtr>> read_entries(const ValueFormat& format, Form form,
                                           const FoundRows& found,
                                           const std::vector<std::size_t>& rows) {
  std::vector<Result<EntryPtr>> entries;
  entries.reserve(rows.size());
  auto values = format.read_all(form, found, rows);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (!values[k].is_ok()) {
      entries.emplace_back(values[k].status());
      continue;
    }
    const std::size_t i = rows[k];
    entries.emplace_back(std::make_shared<const Entry>(
        Entry{std::move(values[k]).value(), std::string(found.header(i).signature), found.run_us(i),
              found.stored_at_us(i), /*confirmation=*/nullptr, InputSample(found.sample(i))}));
  }
  return entries;
}

}  // namespace modcache::cache
