// SPDX-License-Identifier: Apache-2.0
//
// The tables of the database, and what makes a database ours.
#pragma once

#include <cstdint>
#include <string>

#include "store/index/database.h"

namespace modcache::store {

// Makes the tables in an empty database and marks it as ours, in one transaction.
Status create_schema(Database& database);

// The version of the tables, at most kUserVersion. kCorruption: not ours or not whole. Reads a few
// pages; a small database is checked throughout.
Result<std::int64_t> check_schema(Database& database);

// Makes tables of an older `version` those of kUserVersion, in one transaction.
Status migrate_schema(Database& database, std::int64_t version);

}  // namespace modcache::store
