# SPDX-License-Identifier: Apache-2.0
# Defines the imported target Sqlite::Sqlite.
include(PreferStatic)
modcache_prefer_static(Sqlite Sqlite::Sqlite sqlite3.h sqlite3)
if(Sqlite_FOUND)
  find_package(Threads REQUIRED)
  set_target_properties(
    Sqlite::Sqlite PROPERTIES INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
