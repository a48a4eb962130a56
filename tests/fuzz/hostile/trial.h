// SPDX-License-Identifier: Apache-2.0
//
// Trial: one forged copy of a base, and everything that reads it. Aborts (FUZZ_CHECK) when a
// promise does not hold:
//
// - an entry whose record is as it was gives its value or nothing, and never what it was replaced
//   by or what was cleared while the database is there to tell;
// - of a forged record nobody can know what it was: it may give its forged bytes, which are in
//   bounds and pass their checksum;
// - what is put afterwards and confirmed is what the next who opens the directory finds;
// - repair leaves a directory that verifies clean, and no directory grows beyond its budget.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "fuzz/hostile/base.h"
#include "fuzz/hostile/forger.h"
#include "store/store.h"

namespace modcache::fuzz {

enum class Kind { kSegment, kPack, kMap, kControl };
inline constexpr const char* kKindNames[] = {"segment", "pack", "map", "control"};

class Trial {
 public:
  // `folder` is there, and emptied.
  Trial(const Base& base, std::string folder, Kind kind, std::uint64_t seed);

  void run();

 private:
  struct Allowed {
    bool past = false;      // also what was replaced or cleared
    bool as_forged = true;  // of entries with a forged record, anything
  };

  void forge();
  void run_directory();
  void run_pack();
  void remember_forged(const std::string& bytes, const std::set<std::string>& sound);
  void look_up_all(store::Store& store, Allowed allowed);
  void look_up_in_batches(store::Store& store, Allowed allowed);
  void check(const Address& address, const std::string& header, const std::string& payload,
             Allowed allowed) const;
  void list_all(const std::string& path) const;
  void write_and_read_again();
  void repair_and_read_again();
  void check_size() const;
  std::string directory() const { return folder_ + "/d"; }
  std::string pack() const { return folder_ + "/f.pack"; }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  const Base& base_;
  const std::string folder_;
  const Kind kind_;
  Random random_;
  store::StoreOptions options_;
  bool is_database_removed_ = false;
  std::set<Address> forged_;  // of which there are forged records
  std::map<Address, History> histories_;
};

}  // namespace modcache::fuzz
