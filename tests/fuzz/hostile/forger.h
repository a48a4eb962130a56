// SPDX-License-Identifier: Apache-2.0
//
// Forger: changes the files of a directory as somebody would who knows their format: one field, one
// size, one text at a time, with every checksum computed anew, so that nothing is refused before
// its content is looked at. Deterministic: the same random numbers make the same changes.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace modcache::fuzz {

using Random = std::mt19937_64;

class Forger {
 public:
  explicit Forger(Random& random) : random_(random) {}

  // Bytes of a whole file, with one to three changes. What is no such file is returned as it is.
  std::string forged_segment(std::string bytes);
  std::string forged_pack(std::string bytes);
  std::string forged_control(std::string bytes);
  // `database_inode`: of the copy that the map is put beside; a map of another is never looked at.
  std::string forged_map(std::string bytes, std::uint64_t database_inode);

 private:
  std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  // A number of the kinds that break readers, or one near `number`.
  std::uint64_t odd_number(std::uint64_t number);
  void put_number(std::string& bytes, std::size_t offset, std::uint64_t number, std::size_t width);
  void change_text(std::string& bytes, std::size_t begin, std::size_t size);
  void change_record(std::string& bytes, std::size_t begin, std::size_t end, std::uint64_t salt);
  void change_records(std::string& bytes, std::size_t end);
  void change_segment_header(std::string& bytes, std::size_t end);
  void change_page(std::string& page, const std::vector<std::uint64_t>& offsets);

  Random& random_;
};

// Where records begin in `bytes`, which are a sound segment's up to `end`.
std::vector<std::uint64_t> record_offsets(std::string_view bytes, std::size_t end);

}  // namespace modcache::fuzz
