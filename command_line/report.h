// SPDX-License-Identifier: Apache-2.0
//
// Report: the results of a command, written in one of two forms: tables for people, or one JSON
// object for machines. docs/command-line.md defines the members of JSON, whose names never change
// and contain their unit (size_bytes, run_us).
//
// Rows are written as they come, so a listing may have any length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/output.h"
#include "command_line/terminal_text.h"

namespace modcache::command_line {

// A value with one form for people and one for machines.
class Cell {
 public:
  static Cell text(std::string_view text) { return {Kind::kText, 0, text}; }
  static Cell count(std::int64_t count) { return {Kind::kCount, count}; }
  static Cell plain_number(std::int64_t number) { return {Kind::kPlainNumber, number}; }
  static Cell size_bytes(std::int64_t size) { return {Kind::kSize, size}; }
  static Cell duration_us(std::int64_t time) { return {Kind::kDuration, time}; }
  static Cell time_us(std::int64_t time) { return {Kind::kTime, time}; }  // since 1970; 0: absent
  static Cell yes_no(bool is_true) { return {Kind::kBoolean, is_true ? 1 : 0}; }
  static Cell text_if_any(std::string_view text) {
    return text.empty() ? absent() : Cell::text(text);
  }
  // `part` of `whole`: a fraction for machines, per cent for people. Absent when there is no whole.
  static Cell share(std::int64_t part, std::int64_t whole);
  static Cell absent() { return {Kind::kAbsent, 0}; }
  // People read why.
  static Cell absent_as(std::string_view why) { return {Kind::kAbsent, 0, why}; }

  std::string for_people() const;
  std::string as_json() const;
  bool is_number() const;
  bool is_text() const { return kind_ == Kind::kText; }

 private:
  enum class Kind {
    kText,
    kCount,
    kPlainNumber,
    kSize,
    kDuration,
    kTime,
    kBoolean,
    kShare,
    kAbsent
  };
  Cell(Kind kind, std::int64_t number, std::string_view text = {})
      : kind_(kind), number_(number), text_(text) {}

  Kind kind_;
  std::int64_t number_;
  std::string text_;
};

struct Column {
  std::string name;   // the name in JSON; empty: for people alone
  std::string label;  // the label for people; empty: for machines alone
  // A table with sentences shortens nothing. Long texts take several lines.
  bool has_sentences = false;
};

class Report {
 public:
  enum class Form { kTables, kJson };
  static constexpr std::size_t kAllColumns = std::numeric_limits<std::size_t>::max();
  // The first fact is the `directory`, unless it is empty. Text for people takes at most
  // `max_columns` of a terminal: in tables the widest texts are shortened in their middle, and
  // where even that is too wide, each row is a list of facts. Facts and sentences are wrapped.
  // 0: there is no terminal, and only sentences are wrapped. kAllColumns: nothing is.
  Report(Output& output, Form form, std::string_view directory = {},
         std::size_t max_columns = kAllColumns);
  // Completes a report that was left early because the rest could not be read, so JSON is always
  // whole.
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Adds a fact. With an empty `label` it is for machines alone.
  void add(std::string_view name, std::string_view label, const Cell& value);

  // The facts until end_group() are one member in JSON, an object. For people a blank line
  // separates them from others.
  void begin_group(std::string_view name);
  void end_group();

  // Begins a table of rows, which is an array of objects in JSON. `if_none` is the text for people
  // when there are no rows.
  void begin_rows(std::string_view name, std::vector<Column> columns, std::string_view if_none);
  // Does the same, but people read each row as a list of facts, without absent ones.
  void begin_records(std::string_view name, std::vector<Column> columns, std::string_view if_none);
  // Adds a row. Returns false when nobody reads on. REQUIRES: as many cells as columns.
  bool add_row(std::vector<Cell> cells);
  void end_rows();

  // Ends the report. Nothing may be added afterwards.
  void finish();

 private:
  // The first block of rows determines the widths of the columns. A longer cell in a later row
  // shifts that row alone.
  static constexpr std::size_t kRowsOfBlock = 512;
  // The width of sentences that no terminal shows.
  static constexpr std::size_t kColumnsOfSentences = 80;

  void begin_member(std::string_view name);
  void add_blank_line();
  void write_facts();
  void write_as_facts(const std::vector<Cell>& cells);
  void write_block();
  void write_line(const std::vector<std::string>& texts);
  void write_wrapped(const std::vector<std::string>& texts);
  void measure_columns();
  bool has_sentences() const;
  bool may_shrink(const Column& column) const;
  bool is_on_terminal() const { return max_columns_ > 0 && max_columns_ != kAllColumns; }
  bool is_fitted() const;
  std::vector<std::string> shown_of(const std::vector<Cell>& cells) const;

  Output& output_;
  const Form form_;
  const std::size_t max_columns_;
  bool has_members_ = false;
  bool has_text_ = false;
  bool is_in_group_ = false;
  std::vector<std::vector<std::string>> facts_;  // label, value
  std::vector<Column> columns_;
  std::string if_none_;
  bool are_records_ = false;
  bool are_wrapped_ = false;
  bool is_in_rows_ = false;
  bool is_finished_ = false;
  std::vector<std::vector<Cell>> block_;
  // Both have the columns with a label alone.
  std::vector<ColumnWidth> widths_;
  std::vector<bool> is_right_;
  std::size_t rows_ = 0;
};

}  // namespace modcache::command_line
