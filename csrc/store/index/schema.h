// SPDX-License-Identifier: Apache-2.0
//
// Creates and checks the tables of the database.
#pragma once

#include "base/result.h"
#include "store/index/database.h"

namespace modcache::store {

// Creates the tables in an empty database and marks it as ours, in one transaction.
Status create_schema(Database& database);

// kCorruption: the database is not ours or damaged. kUnsupportedVersion: another modcache wrote it.
// Reads a few pages; a small database is checked throughout.
Status check_schema(Database& database);

}  // namespace modcache::store
