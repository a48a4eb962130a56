// SPDX-License-Identifier: Apache-2.0
//
// Report: what a command found out, said once and written in one of two ways: tables for people, or
// one JSON object for machines. Members of JSON are named as in docs/command-line.md and keep their
// names; what a member is counted in stands in its name (size_bytes, run_us).
//
// Rows are written as they come: a listing may have any length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "command_line/output.h"

namespace modcache::command_line {

// One value, with a face for people and one for machines.
class Cell {
 public:
  static Cell text(std::string_view text) { return {Kind::kText, 0, text}; }
  static Cell count(std::int64_t count) { return {Kind::kCount, count}; }
  static Cell plain_number(std::int64_t number) { return {Kind::kPlainNumber, number}; }
  static Cell size_bytes(std::int64_t size) { return {Kind::kSize, size}; }
  static Cell duration_us(std::int64_t time) { return {Kind::kDuration, time}; }
  static Cell time_us(std::int64_t time) { return {Kind::kTime, time}; }  // since 1970
  static Cell yes_no(bool is_true) { return {Kind::kBoolean, is_true ? 1 : 0}; }
  static Cell absent() { return {Kind::kAbsent, 0}; }

  std::string for_people() const;
  std::string as_json() const;
  bool is_number() const;

 private:
  enum class Kind { kText, kCount, kPlainNumber, kSize, kDuration, kTime, kBoolean, kAbsent };
  Cell(Kind kind, std::int64_t number, std::string_view text = {})
      : kind_(kind), number_(number), text_(text) {}

  Kind kind_;
  std::int64_t number_;
  std::string text_;
};

struct Column {
  std::string name;   // in JSON; empty: for people alone
  std::string label;  // for people; empty: for machines alone
};

class Report {
 public:
  enum class Form { kTables, kJson };
  Report(Output& output, Form form);
  // One that is left early, since the rest could not be read, is ended: JSON is always whole.
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // A fact. An empty `label`: for machines alone.
  void add(std::string_view name, std::string_view label, const Cell& value);

  // A table of rows, an array of objects in JSON. `if_none`: what people read where there are none.
  void begin_rows(std::string_view name, std::vector<Column> columns, std::string_view if_none);
  // The same, where people read each row as a list of facts, without what is absent.
  void begin_records(std::string_view name, std::vector<Column> columns, std::string_view if_none);
  // REQUIRES: as many cells as columns. False: nobody reads on.
  bool add_row(std::vector<Cell> cells);
  void end_rows();

  // Nothing may be added afterwards.
  void finish();

 private:
  // So many rows decide how wide the columns are.
  static constexpr std::size_t kRowsOfBlock = 512;

  void begin_member(std::string_view name);
  void write_facts();
  void write_block();
  void measure_columns();

  Output& output_;
  const Form form_;
  bool has_members_ = false;
  bool has_text_ = false;
  std::vector<std::vector<std::string>> facts_;  // label, value
  std::vector<Column> columns_;
  std::string if_none_;
  bool are_records_ = false;
  bool is_in_rows_ = false;
  bool is_finished_ = false;
  std::vector<std::vector<Cell>> block_;
  std::vector<std::size_t> widths_;
  std::vector<bool> is_right_;
  std::size_t rows_ = 0;
};

}  // namespace modcache::command_line
