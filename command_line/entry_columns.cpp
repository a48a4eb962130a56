// SPDX-License-Identifier: Apache-2.0
#include "command_line/entry_columns.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "command_line/units.h"
#include "command_line/value_text.h"
#include "fs/posix_file_system.h"
#include "store/directory/directory.h"

namespace modcache::command_line {
namespace {

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

// `ls` prints a line per entry, so people see fewer columns there than in `show`.
std::vector<Column> columns_for(bool is_full) {
  const auto full = [is_full](const char* label) { return std::string(is_full ? label : ""); };
  return {{"key", is_full ? "key" : "KEY"},
          {"key_hex", ""},
          {"scope", is_full ? "scope" : "SCOPE"},
          {"class", is_full ? "cached" : "CACHED"},
          {"namespace", full("namespace")},
          {"method", full("method")},
          {"form", is_full ? "form" : "FORM"},
          {"arguments", full("other arguments")},
          {"autocast", full("autocast")},
          {"value_bytes", is_full ? "size" : "SIZE"},
          {"run_us", is_full ? "run time" : "RUN TIME"},
          {"stored_at", is_full ? "stored" : "STORED"},
          {"sequence", full("sequence")},
          {"segment", full("segment")},
          {"offset", full("at byte")}};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the number off that the text begins with; without zeros before it.
std::string_view take_number(std::string_view& text) {
  const auto end =
      static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  std::string_view number = text.substr(0, end);
  text.remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

}  // namespace

EntryColumns::EntryColumns(const std::string& directory, bool has_values, bool checks_values)
    : directory_(directory),
      has_values_(has_values),
      checks_values_(checks_values),
      columns_(columns_for(checks_values)) {
  if (!has_values_) return;
  columns_.push_back({"value", checks_values ? "value" : "VALUE"});
  columns_.push_back({"signature", checks_values ? "computed from" : ""});
  columns_.push_back({"codec", checks_values ? "codec" : ""});
  columns_.push_back({"damage", ""});
  columns_.push_back({"", checks_values ? "bytes" : ""});
  store::StoreOptions options;
  options.directory = directory;
  options.writable = false;
  options.read_via = store::ReadVia::kPread;
  auto opened = store::Store::open(fs::posix_file_system(), options);
  opened_ = opened.status();
  if (opened.is_ok()) store_ = std::move(opened).value();
}

std::vector<Cell> EntryColumns::cells(const KnownContext& context,
                                      const store::ListedEntry& entry) {
  std::vector<Cell> cells{
      Cell::text(entry.key),
      is_utf8(entry.key) ? Cell::absent() : Cell::text(hex(entry.key)),
      Cell::text(context.scope()),
      Cell::text_if_any(context.class_name),
      Cell::text(context.name_space),
      Cell::text(context.method),
      Cell::text(context.form),
      Cell::text(context.arguments),
      Cell::text(context.autocast),
      Cell::size_bytes(static_cast<std::int64_t>(entry.location.payload_size_bytes)),
      Cell::duration_us(entry.location.run_us),
      Cell::time_us(entry.stored_at_us),
      Cell::plain_number(static_cast<std::int64_t>(entry.location.sequence)),
      Cell::text(store::segment_name(entry.location.segment)),
      Cell::plain_number(static_cast<std::int64_t>(entry.location.offset))};
  if (has_values_) add_value(context, entry, cells);
  return cells;
}

void EntryColumns::add_value(const KnownContext& context, const store::ListedEntry& entry,
                             std::vector<Cell>& cells) {
  Status status = opened_;
  ValueText text;
  if (status.is_ok()) {
    auto found = store_->find({context.listed.context, entry.key});
    status = found.status();
    if (status.is_not_found()) status = Status::not_found("it was removed a moment ago");
    if (status.is_ok()) {
      auto described = describe_value(found.value()->header());
      if (described.is_ok()) text = described.value();
      status = checks_values_ ? check(*found.value(), entry) : Status::ok();
    }
  }
  if (!status.is_ok() && !status.is_not_found()) ++damaged_;
  cells.push_back(Cell::text_if_any(text.value));
  cells.push_back(Cell::text(text.signature));
  cells.push_back(Cell::text_if_any(text.codec));
  cells.push_back(status.is_ok() ? Cell::absent() : Cell::text(status.message()));
  cells.push_back(Cell::text(status.is_ok() ? "whole" : "damaged: " + status.message()));
}

// Check the size against the segment before taking memory for it.
Status EntryColumns::check(const store::FoundEntry& found, const store::ListedEntry& entry) const {
  const store::Directory directory(fs::posix_file_system(), directory_);
  const auto info = fs::posix_file_system().info(
      is_file(directory_) ? directory_ : directory.segment_path(entry.location.segment));
  if (info.is_ok() && found.payload_size_bytes() > info.value().size_bytes) {
    return Status::corruption("it claims more bytes than its segment has");
  }
  const std::unique_ptr<std::byte[]> payload(new std::byte[found.payload_size_bytes()]);
  return found.read_payload(payload.get());
}

bool comes_before(std::string_view a, std::string_view b) {
  std::string_view rest_a = a;
  std::string_view rest_b = b;
  while (!rest_a.empty() && !rest_b.empty()) {
    if (is_digit(rest_a.front()) && is_digit(rest_b.front())) {
      const std::string_view number_a = take_number(rest_a);
      const std::string_view number_b = take_number(rest_b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (const int order = number_a.compare(number_b); order != 0) return order < 0;
      continue;
    }
    const auto byte_a = static_cast<unsigned char>(rest_a.front());
    const auto byte_b = static_cast<unsigned char>(rest_b.front());
    if (byte_a != byte_b) return byte_a < byte_b;
    rest_a.remove_prefix(1);
    rest_b.remove_prefix(1);
  }
  if (rest_a.empty() != rest_b.empty()) return rest_a.empty();
  return a < b;
}

}  // namespace modcache::command_line
