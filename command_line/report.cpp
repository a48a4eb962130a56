// SPDX-License-Identifier: Apache-2.0
#include "command_line/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "command_line/terminal_text.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr char kNothing[] = "-";
constexpr std::int64_t kWholeShare = 1'000'000'000;

// "0 %" and "100 %" are for exactly these.
std::string per_cent(std::int64_t share) {
  if (share == 0 || share == kWholeShare) return share == 0 ? "0 %" : "100 %";
  const double rounded = std::round(static_cast<double>(share) * 1000 / kWholeShare) / 10;
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", std::clamp(rounded, 0.1, 99.9));
  return text.data();
}

std::string fraction(std::int64_t share) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%.9g", static_cast<double>(share) / kWholeShare);
  return text.data();
}

std::string json_text(std::string_view text) {
  // Invalid UTF-8 becomes U+FFFD. Everything beyond ASCII is escaped, as terminals obey some
  // characters: U+009B begins a command, U+202E reverses the direction.
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
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
    case Kind::kShare: return per_cent(number_);
    case Kind::kAbsent: return text_.empty() ? kNothing : text_;
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
    case Kind::kShare: return fraction(number_);
    case Kind::kAbsent: break;
  }
  return "null";
}

Cell Cell::share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return absent();
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  return {Kind::kShare, std::llround(std::clamp(share, 0.0, 1.0) * kWholeShare)};
}

bool Cell::is_number() const {
  return kind_ == Kind::kCount || kind_ == Kind::kPlainNumber || kind_ == Kind::kSize ||
         kind_ == Kind::kDuration || kind_ == Kind::kShare;
}

Report::Report(Output& output, Form form, std::string_view directory, std::size_t max_columns)
    : output_(output), form_(form), max_columns_(max_columns) {
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
  if (is_in_group_) output_.write(" ");
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

void Report::add_blank_line() {
  if (!facts_.empty() && !facts_.back()[0].empty()) facts_.push_back({"", ""});
}

void Report::begin_group(std::string_view name) {
  if (form_ != Form::kJson) return add_blank_line();
  begin_member(name);
  output_.write("{");
  has_members_ = false;
  is_in_group_ = true;
}

void Report::end_group() {
  if (form_ != Form::kJson) return add_blank_line();
  output_.write("\n }");
  has_members_ = true;
  is_in_group_ = false;
}

void Report::write_facts() {
  if (!facts_.empty() && facts_.back()[0].empty()) facts_.pop_back();
  if (facts_.empty()) return;
  std::size_t width = 0;
  for (const auto& fact : facts_) width = std::max(width, columns_of(fact[0]));
  if (has_text_) output_.write("\n");
  const std::size_t indent = width + kBetweenColumns;
  const bool is_wrapped = is_on_terminal() && max_columns_ >= indent + kMinWrappedColumns;
  for (const auto& fact : facts_) {
    std::string label = padded(fact[0], width, false);
    const auto lines = is_wrapped ? wrapped(fact[1], max_columns_ - indent, true)
                                  : std::vector<std::string>{fact[1]};
    for (const std::string& text : lines) {
      std::string line = label + std::string(kBetweenColumns, ' ') + text;
      strip_end(line);
      output_.write(line + '\n');
      label.assign(width, ' ');
    }
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
  are_wrapped_ = false;
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
    write_as_facts(cells);
  } else {
    block_.push_back(std::move(cells));
    if (block_.size() == kRowsOfBlock) write_block();
  }
  ++rows_;
  return !output_.is_closed();
}

void Report::write_as_facts(const std::vector<Cell>& cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string text = cells[i].for_people();
    if (columns_[i].label.empty() || text == kNothing) continue;
    facts_.push_back({columns_[i].label, text});
  }
  write_facts();
}

bool Report::has_sentences() const {
  return std::any_of(columns_.begin(), columns_.end(),
                     [](const Column& column) { return column.has_sentences; });
}

bool Report::may_shrink(const Column& column) const {
  return is_on_terminal() || column.has_sentences;
}

bool Report::is_fitted() const { return is_on_terminal() && !has_sentences(); }

std::vector<std::string> Report::shown_of(const std::vector<Cell>& cells) const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!columns_[i].label.empty()) texts.push_back(cells[i].for_people());
  }
  return texts;
}

void Report::measure_columns() {
  is_right_.clear();
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].label.empty()) continue;
    ColumnWidth width{columns_of(columns_[i].label), false};
    bool are_numbers = true;
    bool has_number = false;
    for (const auto& row : block_) {
      const std::string text = row[i].for_people();
      width.columns = std::max(width.columns, columns_of(text));
      width.may_shrink = width.may_shrink || (row[i].is_text() && may_shrink(columns_[i]));
      has_number = has_number || row[i].is_number();
      are_numbers = are_numbers && (row[i].is_number() || text == kNothing);
    }
    is_right_.push_back(are_numbers && has_number);
    widths_.push_back(width);
  }
  if (max_columns_ == kAllColumns) return;
  if (!has_sentences()) {
    are_records_ = is_on_terminal() && !fit(widths_, max_columns_);
  } else if (is_on_terminal()) {
    are_wrapped_ = fit(widths_, max_columns_, kMinWrappedColumns);
    are_records_ = !are_wrapped_;
  } else {
    are_wrapped_ = fit(widths_, kColumnsOfSentences, kMinWrappedColumns);
  }
}

void Report::write_wrapped(const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> cells;
  std::size_t lines = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    // A path in a file or pipe stays whole, so that it can be found and copied.
    const bool is_text = widths_[i].may_shrink;
    cells.push_back(is_text ? wrapped(texts[i], widths_[i].columns, is_on_terminal())
                            : std::vector<std::string>{texts[i]});
    lines = std::max(lines, cells.back().size());
  }
  for (std::size_t n = 0; n < lines; ++n) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += std::string(kBetweenColumns, ' ');
      const bool is_there = n < cells[i].size();
      line += padded(is_there ? cells[i][n] : std::string(), widths_[i].columns, is_right_[i]);
    }
    strip_end(line);
    output_.write(line + '\n');
  }
}

void Report::write_line(const std::vector<std::string>& texts) {
  if (are_wrapped_) return write_wrapped(texts);
  std::vector<ColumnWidth> widths = widths_;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    widths[i].columns = std::max(widths[i].columns, columns_of(texts[i]));
  }
  if (is_fitted()) fit(widths, max_columns_);
  std::string line;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) line += std::string(kBetweenColumns, ' ');
    const bool is_cut = widths[i].may_shrink && is_fitted();
    line += padded(is_cut ? shortened(texts[i], widths[i].columns) : texts[i], widths[i].columns,
                   is_right_[i]);
  }
  strip_end(line);
  output_.write(line + '\n');
}

void Report::write_block() {
  if (widths_.empty()) {
    measure_columns();
    if (!are_records_) {
      if (has_text_) output_.write("\n");
      std::vector<std::string> labels;
      for (const Column& column : columns_) {
        if (!column.label.empty()) labels.push_back(column.label);
      }
      write_line(labels);
    }
  }
  for (const auto& row : block_) {
    if (are_records_) {
      write_as_facts(row);
    } else {
      write_line(shown_of(row));
    }
  }
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
  are_records_ = false;
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
