// SPDX-License-Identifier: Apache-2.0
//
// The tables of the database, and what makes a database ours.
#pragma once

#include <cstdint>
#include <string>

#include "store/database.h"

namespace modcache::store {

// Makes the tables in an empty database and marks it as ours, in one transaction.
Status create_schema(Database& database);

// kCorruption: not ours or not whole. Reads a few pages; a small database is checked throughout.
Status check_schema(Database& database);

}  // namespace modcache::store
