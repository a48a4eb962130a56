// SPDX-License-Identifier: Apache-2.0
#include "command_line/html.h"

#include <gmock/gmock.h>

#include <limits>

namespace modcache::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HtmlTest, text_stays_text) {
  EXPECT_EQ(html_text("<script>alert('&\"')</script>"),
            "&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;");
  EXPECT_EQ(html_text("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(html_text("a\nb\xff\xe2\x80\xae"), "a\\nb\\xff\\xe2\\x80\\xae");
  EXPECT_EQ(html_of_printable("a\\n<"), "a\\n&lt;");
}

TEST(HtmlTest, a_line_has_gaps_where_nothing_is_known) {
  const std::vector<ChartPoint> points{
      {"Monday", "<b>", 0.5}, {"Tuesday", "", 1}, {"Wednesday", "", 0, false}, {"Thursday", "", 0}};
  const std::string chart =
      chart_html("Rate", "in \"words\"", ChartForm::kLine, points, {1, {"0 %", "100 %"}});
  EXPECT_THAT(chart, HasSubstr("class=\"line\" d=\"M50 50L150 0M350 100\""));
  EXPECT_THAT(chart, HasSubstr("<title>&lt;b&gt;</title>"));
  EXPECT_THAT(chart, HasSubstr("aria-label=\"in &quot;words&quot;\""));
  EXPECT_THAT(chart, HasSubstr("Thursday"));
}

TEST(HtmlTest, bars_end_within_the_chart) {
  const std::string chart =
      chart_html("Time", "", ChartForm::kBars, {{"a", "", 5}, {"b", "", 0}}, {4, {"0", "4"}});
  EXPECT_THAT(chart, HasSubstr("class=\"bars\" d=\"M10 100V0h80V100z\""));
  EXPECT_THAT(chart, Not(HasSubstr("nan")));
}

TEST(HtmlTest, an_axis_of_time_has_steps_that_people_count_in) {
  EXPECT_THAT(duration_axis(1).ticks, ElementsAre("0", "1 us"));
  EXPECT_THAT(duration_axis(7'000'000).ticks, ElementsAre("0", "2 s", "4 s", "6 s", "8 s"));
  EXPECT_THAT(duration_axis(100'000'000).ticks, ElementsAre("0", "1 min", "2 min"));
  EXPECT_THAT(duration_axis(3'000'000'000).ticks,
              ElementsAre("0", "15 min", "30 min", "45 min", "1 h"));
  EXPECT_EQ(duration_axis(7'000'000).top, 8'000'000);
}

TEST(HtmlTest, an_axis_reaches_any_time) {
  for (std::int64_t most = 1; most < std::int64_t{1} << 58; most = most * 3 + 1) {
    const ChartAxis axis = duration_axis(most);
    EXPECT_GE(axis.top, static_cast<double>(most)) << most;
    EXPECT_GE(axis.ticks.size(), 2U) << most;
    EXPECT_LE(axis.ticks.size(), 5U) << most;
  }
}

}  // namespace
}  // namespace modcache::command_line
