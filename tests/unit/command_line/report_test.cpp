// SPDX-License-Identifier: Apache-2.0
#include "command_line/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/captured_output.h"

namespace modcache::command_line {
namespace {

constexpr std::int64_t kTime = 1'000'000'000'000'000;

void write_everything(Output& output, Report::Form form) {
  Report report(output, form);
  report.add("directory", "directory", Cell::text("/a"));
  report.add("entries", "entries", Cell::count(1234));
  report.add("contexts", "", Cell::count(2));
  report.begin_rows("rows", {{"key", "KEY"}, {"bytes", "SIZE"}, {"is", ""}, {"", "STATE"}}, "none");
  report.add_row({Cell::text("a"), Cell::size_bytes(5), Cell::yes_no(true), Cell::text("whole")});
  report.add_row({Cell::text("long"), Cell::absent(), Cell::yes_no(false), Cell::text("")});
  report.end_rows();
  report.begin_rows("more", {{"key", "KEY"}}, "no more");
  report.end_rows();
  report.finish();
}

TEST(ReportTest, people_get_aligned_tables) {
  testing::CapturedOutput captured;
  write_everything(captured.output(), Report::Form::kTables);
  EXPECT_EQ(captured.data(),
            "directory  /a\n"
            "entries    1,234\n"
            "\n"
            "KEY   SIZE  STATE\n"
            "a      5 B  whole\n"
            "long     -  -\n"
            "\n"
            "no more\n");
}

TEST(ReportTest, machines_get_one_object_with_every_member) {
  testing::CapturedOutput captured;
  write_everything(captured.output(), Report::Form::kJson);
  const auto expected = nlohmann::json::parse(R"({
    "directory": "/a", "entries": 1234, "contexts": 2,
    "rows": [{"key": "a", "bytes": 5, "is": true}, {"key": "long", "bytes": null, "is": false}],
    "more": []})");
  EXPECT_EQ(nlohmann::json::parse(captured.data()), expected) << captured.data();
}

TEST(ReportTest, nothing_is_an_empty_object) {
  testing::CapturedOutput captured;
  Report(captured.output(), Report::Form::kJson).finish();
  EXPECT_EQ(nlohmann::json::parse(captured.data()), nlohmann::json::object());
}

TEST(ReportTest, a_record_is_a_list_of_what_is_there) {
  testing::CapturedOutput captured;
  Report report(captured.output(), Report::Form::kTables);
  report.begin_records("entries", {{"key", "key"}, {"scope", "scope"}, {"x", ""}}, "");
  report.add_row({Cell::text("a"), Cell::text("s"), Cell::count(1)});
  report.add_row({Cell::text("b"), Cell::absent(), Cell::count(1)});
  report.end_rows();
  report.finish();
  EXPECT_EQ(captured.data(), "key    a\nscope  s\n\nkey  b\n");
}

TEST(ReportTest, a_long_listing_keeps_the_widths_of_its_beginning) {
  testing::CapturedOutput captured;
  Report report(captured.output(), Report::Form::kTables);
  report.begin_rows("rows", {{"a", "A"}, {"b", "B"}}, "");
  for (int i = 0; i < 2000; ++i) report.add_row({Cell::text("xxx"), Cell::count(1)});
  report.add_row({Cell::text("xxxxx"), Cell::count(1)});
  report.end_rows();
  report.finish();
  const std::string data = captured.data();
  EXPECT_EQ(data.substr(0, 14), "A    B\nxxx  1\n");
  EXPECT_EQ(data.substr(data.size() - 9), "xxxxx  1\n");
}

// A table of a text, a number and a time, as a terminal of this width gets it.
std::string in_terminal(std::size_t most_columns, const std::string& key, std::int64_t count) {
  testing::CapturedOutput captured;
  Report report(captured.output(), Report::Form::kTables, "", most_columns);
  report.begin_rows("rows", {{"key", "KEY"}, {"n", "COUNT"}, {"at", "STORED"}}, "");
  report.add_row({Cell::text("abcdefghijklmnop"), Cell::count(5), Cell::absent()});
  report.add_row({Cell::text(key), Cell::count(count), Cell::absent()});
  report.end_rows();
  report.finish();
  return captured.data();
}

TEST(ReportTest, a_table_fits_the_terminal_and_keeps_its_numbers) {
  EXPECT_EQ(in_terminal(25, "b", 7),
            "KEY         COUNT  STORED\n"
            "abcde\xe2\x80\xa6mnop      5  -\n"
            "b               7  -\n");
  EXPECT_EQ(in_terminal(31, "b", 1),
            "KEY               COUNT  STORED\n"
            "abcdefghijklmnop      5  -\n"
            "b                     1  -\n");
}

TEST(ReportTest, in_a_terminal_too_narrow_for_a_table_rows_are_lists) {
  EXPECT_EQ(in_terminal(20, "b", 7), "KEY    abcdefghijklmnop\nCOUNT  5\n\nKEY    b\nCOUNT  7\n");
}

// A table of a name and two sentences.
std::string sentences(std::size_t max_columns, const std::string& found, const std::string& cure) {
  testing::CapturedOutput captured;
  Report report(captured.output(), Report::Form::kTables, "", max_columns);
  report.begin_rows("rows", {{"check", "CHECK"}, {"found", "FOUND", true}, {"cure", "CURE", true}},
                    "");
  report.add_row({Cell::text("disk"), Cell::text(found), Cell::text(cure)});
  report.end_rows();
  report.finish();
  return captured.data();
}

TEST(ReportTest, WrapsSentencesOnTerminal) {
  EXPECT_EQ(sentences(42, "this user cannot write here", "chmod u+w, by the owner"),
            "CHECK  FOUND              CURE\n"
            "disk   this user cannot   chmod u+w, by\n"
            "       write here         the owner\n");
}

TEST(ReportTest, SplitsLongWordsOnTerminal) {
  EXPECT_EQ(sentences(42, "a /directory/with/a/long/name", "-"),
            "CHECK  FOUND                          CURE\n"
            "disk   a /directory/with/a/long/name  -\n");
  EXPECT_EQ(sentences(39, "a /directory/with/a/long/name", "-"),
            "CHECK  FOUND                       CURE\n"
            "disk   a                           -\n"
            "       /directory/with/a/long/nam\n"
            "       e\n");
}

TEST(ReportTest, WritesListsOfWrappedSentencesOnNarrowTerminal) {
  EXPECT_EQ(sentences(30, "this user cannot write here", "chmod u+w, by the owner"),
            "CHECK  disk\n"
            "FOUND  this user cannot write\n"
            "       here\n"
            "CURE   chmod u+w, by the owner\n");
}

TEST(ReportTest, WrapsSentencesWithoutTerminalButKeepsWords) {
  const std::string path = "/" + std::string(90, 'x');
  const std::string data = sentences(0, "it is " + path, "move it to another place");
  EXPECT_NE(data.find(path), std::string::npos);
  EXPECT_EQ(sentences(0, "it is here", std::string(60, 'a') + " and more"),
            "CHECK  FOUND       CURE\n"
            "disk   it is here  " +
                std::string(60, 'a') + "\n                   and more\n");
}

TEST(ReportTest, WrapsNothingIfAllColumnsAreWanted) {
  EXPECT_EQ(
      sentences(Report::kAllColumns, std::string(90, 'a'), "b c"),
      "CHECK  FOUND" + std::string(87, ' ') + "CURE\ndisk   " + std::string(90, 'a') + "  b c\n");
}

TEST(ReportTest, WrapsFactsOnTerminal) {
  testing::CapturedOutput captured;
  Report report(captured.output(), Report::Form::kTables, "/data/me/caches/of/project", 30);
  report.add("mode", "mode", Cell::text("on"));
  report.finish();
  EXPECT_EQ(captured.data(),
            "directory  /data/me/caches/of/\n"
            "           project\n"
            "mode       on\n");
}

TEST(ReportTest, a_later_longer_row_fits_the_terminal_too) {
  testing::CapturedOutput captured;
  Report report(captured.output(), Report::Form::kTables, "", 20);
  report.begin_rows("rows", {{"a", "A"}, {"b", "B"}}, "");
  for (int i = 0; i < 600; ++i) report.add_row({Cell::text("xxx"), Cell::count(1)});
  report.add_row({Cell::text(std::string(30, 'y')), Cell::count(123'456)});
  report.end_rows();
  report.finish();
  const std::string data = captured.data();
  EXPECT_EQ(data.substr(data.rfind('y') - 12), "yyyyy\xe2\x80\xa6yyyyy  123,456\n");
}

TEST(ReportTest, a_group_is_an_object_and_stands_apart) {
  const auto write = [](Output& output, Report::Form form) {
    Report report(output, form);
    report.begin_group("counted");
    report.add("hit_rate", "hit rate", Cell::share(3, 4));
    report.end_group();
    report.begin_group("now");
    report.add("none", "", Cell::share(0, 0));
    report.end_group();
    report.add("entries", "entries", Cell::count(1));
    report.finish();
  };
  testing::CapturedOutput people;
  write(people.output(), Report::Form::kTables);
  EXPECT_EQ(people.data(), "hit rate  75.0 %\n\nentries   1\n");
  testing::CapturedOutput machines;
  write(machines.output(), Report::Form::kJson);
  EXPECT_EQ(nlohmann::json::parse(machines.data()),
            nlohmann::json::parse(
                R"({"counted": {"hit_rate": 0.75}, "now": {"none": null}, "entries": 1})"));
}

TEST(ReportTest, all_and_nothing_are_exact_in_per_cent) {
  EXPECT_EQ(Cell::share(7, 7).for_people(), "100 %");
  EXPECT_EQ(Cell::share(0, 7).for_people(), "0 %");
  EXPECT_EQ(Cell::share(999'999, 1'000'000).for_people(), "99.9 %");
  EXPECT_EQ(Cell::share(1, 1'000'000).for_people(), "0.1 %");
  EXPECT_EQ(Cell::share(1, 1'000'000).as_json(), "1e-06");
  EXPECT_EQ(Cell::share(0, 0).for_people(), "-");
  EXPECT_EQ(Cell::share(0, 0).as_json(), "null");
  EXPECT_EQ(Cell::absent_as("none counted yet").for_people(), "none counted yet");
  EXPECT_EQ(Cell::absent_as("none counted yet").as_json(), "null");
}

TEST(ReportTest, json_of_odd_text_is_json) {
  for (const char* text : {"\xff", "\"", "\n\x1b", "caf\xc3\xa9"}) {
    const auto parsed = nlohmann::json::parse(Cell::text(text).as_json(), nullptr, false);
    EXPECT_TRUE(parsed.is_string()) << text;
  }
  EXPECT_EQ(Cell::text("\xc2\x9b\xe2\x80\xae\xe2\x80\xa8").as_json(), "\"\\u009b\\u202e\\u2028\"")
      << "no terminal obeys it";
  EXPECT_EQ(Cell::time_us(kTime).as_json(), "\"2001-09-09T01:46:40.000000Z\"");
  EXPECT_EQ(Cell::time_us(0).as_json(), "null");
}

TEST(ReportTest, one_that_is_left_early_is_a_whole_object) {
  testing::CapturedOutput captured;
  {
    Report report(captured.output(), Report::Form::kJson);
    report.add("directory", "", Cell::text("/a"));
    report.begin_rows("entries", {{"key", "KEY"}}, "none");
    report.add_row({Cell::text("a")});
  }
  EXPECT_EQ(nlohmann::json::parse(captured.data()),
            nlohmann::json({{"directory", "/a"}, {"entries", {{{"key", "a"}}}}}));
}

TEST(ReportTest, one_that_is_left_early_does_not_say_that_there_is_nothing) {
  testing::CapturedOutput captured;
  {
    Report report(captured.output(), Report::Form::kTables);
    report.begin_rows("entries", {{"key", "KEY"}}, "no entries");
  }
  EXPECT_EQ(captured.data(), "");
}

}  // namespace
}  // namespace modcache::command_line
