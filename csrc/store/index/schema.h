// SPDX-License-Identifier: Apache-2.0
//
// Creates, checks and migrates the tables of the database.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "store/index/database.h"

namespace modcache::store {

// Creates the tables in an empty database and marks it as ours, in one transaction.
Status create_schema(Database& database);

// Returns the version of the tables, at most kUserVersion. kCorruption: the database is not ours or
// damaged. Reads a few pages; a small database is checked throughout.
Result<std::int64_t> check_schema(Database& database);

// Migrates tables of an older `version` to kUserVersion, in one transaction.
Status migrate_schema(Database& database, std::int64_t version);

}  // namespace modcache::store
