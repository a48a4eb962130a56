// SPDX-License-Identifier: Apache-2.0
//
// Reports what the processes of a directory counted: all of it, by scope, or by day.
#pragma once

#include "command_line/counted.h"
#include "command_line/report.h"

namespace modcache::command_line {

// Adds the member `counted`: an object.
void report_counted(Report& report, const store::CounterTotals& totals);
// Adds the member `by_scope`: rows, those that saved most time first.
void report_by_scope(Report& report, const store::CounterTotals& totals, const ScopeNames& names);
// Adds the member `by_day`: rows, the oldest first.
void report_by_day(Report& report, const store::CounterTotals& totals);

}  // namespace modcache::command_line
