// SPDX-License-Identifier: Apache-2.0
#include "command_line/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr char kNothing[] = "-";

std::string json_text(std::string_view text) {
  // Invalid UTF-8 becomes U+FFFD. Everything beyond ASCII is escaped, as terminals obey some
  // characters: U+009B begins a command, U+202E reverses the direction.
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string padded(const std::string& text, std::size_t width, bool is_right) {
  const std::size_t columns = columns_of(text);
  const std::string blanks(width > columns ? width - columns : 0, ' ');
  return is_right ? blanks + text : text + blanks;
}

void strip_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

std::string Cell::for_people() const {
  switch (kind_) {
    case Kind::kText: return text_.empty() ? kNothing : printable(text_);
    case Kind::kCount: return count_text(number_);
    case Kind::kPlainNumber: return std::to_string(number_);
    case Kind::kSize: return size_text(number_);
    case Kind::kDuration: return duration_text(number_);
    case Kind::kTime: return local_time_text(number_);
    case Kind::kBoolean: return number_ != 0 ? "yes" : "no";
    case Kind::kAbsent: break;
  }
  return kNothing;
}

std::string Cell::as_json() const {
  switch (kind_) {
    case Kind::kText: return json_text(text_);
    case Kind::kCount:
    case Kind::kPlainNumber:
    case Kind::kSize:
    case Kind::kDuration: return std::to_string(number_);
    case Kind::kTime: {
      const std::string time = utc_time_text(number_);
      return time.empty() ? "null" : json_text(time);
    }
    case Kind::kBoolean: return number_ != 0 ? "true" : "false";
    case Kind::kAbsent: break;
  }
  return "null";
}

bool Cell::is_number() const {
  return kind_ == Kind::kCount || kind_ == Kind::kPlainNumber || kind_ == Kind::kSize ||
         kind_ == Kind::kDuration;
}

Report::Report(Output& output, Form form, std::string_view directory)
    : output_(output), form_(form) {
  if (form_ == Form::kJson) output_.write("{");
  if (!directory.empty()) add("directory", "directory", Cell::text(directory));
}

Report::~Report() {
  if (is_finished_) return;
  // It is not known that there are no rows, so the text that says so is dropped.
  if_none_.clear();
  if (is_in_rows_) end_rows();
  finish();
}

void Report::begin_member(std::string_view name) {
  output_.write(has_members_ ? ",\n " : "\n ");
  output_.write(json_text(name));
  output_.write(": ");
  has_members_ = true;
}

void Report::add(std::string_view name, std::string_view label, const Cell& value) {
  if (form_ == Form::kJson) {
    begin_member(name);
    output_.write(value.as_json());
  } else if (!label.empty()) {
    facts_.push_back({std::string(label), value.for_people()});
  }
}

void Report::write_facts() {
  if (facts_.empty()) return;
  std::size_t width = 0;
  for (const auto& fact : facts_) width = std::max(width, columns_of(fact[0]));
  if (has_text_) output_.write("\n");
  for (const auto& fact : facts_) {
    output_.write(padded(fact[0], width, false) + "  " + fact[1] + '\n');
  }
  facts_.clear();
  has_text_ = true;
}

void Report::begin_rows(std::string_view name, std::vector<Column> columns,
                        std::string_view if_none) {
  write_facts();
  columns_ = std::move(columns);
  if_none_ = if_none;
  are_records_ = false;
  is_in_rows_ = true;
  rows_ = 0;
  widths_.clear();
  if (form_ != Form::kJson) return;
  begin_member(name);
  output_.write("[");
}

void Report::begin_records(std::string_view name, std::vector<Column> columns,
                           std::string_view if_none) {
  begin_rows(name, std::move(columns), if_none);
  are_records_ = true;
}

bool Report::add_row(std::vector<Cell> cells) {
  if (form_ == Form::kJson) {
    std::string line = rows_ == 0 ? "\n  {" : ",\n  {";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (columns_[i].name.empty()) continue;
      if (line.back() != '{') line += ", ";
      line += json_text(columns_[i].name) + ": " + cells[i].as_json();
    }
    output_.write(line + '}');
  } else if (are_records_) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string text = cells[i].for_people();
      if (columns_[i].label.empty() || text == kNothing) continue;
      facts_.push_back({columns_[i].label, text});
    }
    write_facts();
  } else {
    block_.push_back(std::move(cells));
    if (block_.size() == kRowsOfBlock) write_block();
  }
  ++rows_;
  return !output_.is_closed();
}

// The first block determines the widths; a longer cell in a later row shifts that row alone.
void Report::measure_columns() {
  widths_.resize(columns_.size());
  is_right_.resize(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths_[i] = columns_of(columns_[i].label);
    bool are_numbers = true;
    bool has_number = false;
    for (const auto& row : block_) {
      const std::string text = row[i].for_people();
      widths_[i] = std::max(widths_[i], columns_of(text));
      has_number = has_number || row[i].is_number();
      are_numbers = are_numbers && (row[i].is_number() || text == kNothing);
    }
    is_right_[i] = are_numbers && has_number;
  }
}

void Report::write_block() {
  const bool is_first = widths_.empty();
  if (is_first) measure_columns();
  const auto write_line = [this](const auto& text_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].label.empty()) continue;
      if (!line.empty()) line += "  ";
      line += padded(text_of(i), widths_[i], is_right_[i]);
    }
    strip_end(line);
    output_.write(line + '\n');
  };
  if (is_first) {
    if (has_text_) output_.write("\n");
    write_line([this](std::size_t i) { return columns_[i].label; });
  }
  for (const auto& row : block_) write_line([&](std::size_t i) { return row[i].for_people(); });
  block_.clear();
  has_text_ = true;
}

void Report::end_rows() {
  is_in_rows_ = false;
  if (form_ == Form::kJson) {
    output_.write(rows_ == 0 ? "]" : "\n ]");
    return;
  }
  if (!block_.empty()) write_block();
  if (rows_ > 0 || if_none_.empty()) return;
  output_.write((has_text_ ? "\n" : "") + if_none_ + '\n');
  has_text_ = true;
}

void Report::finish() {
  write_facts();
  if (form_ == Form::kJson) output_.write("\n}\n");
  is_finished_ = true;
}

}  // namespace modcache::command_line
