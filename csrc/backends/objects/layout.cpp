// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/layout.h"

#include <algorithm>
#include <unordered_map>

#include "base/little_endian.h"

namespace modcache::backends {
namespace {

// checksum u64, magic, version u16, 0 u16, count u32, count of packs' writers u32.
constexpr std::size_t kFrameBytes = 24;
constexpr std::uint16_t kVersion = 1;
constexpr std::string_view kSegmentMagic = "mcOS";
constexpr std::string_view kHeadMagic = "mcOH";
constexpr std::string_view kWritersMagic = "mcOW";
constexpr std::size_t kHeadRangeBytes = 12;
constexpr std::size_t kListedWriterBytes = 16;
// Leaves room for the times that must be later than another one.
constexpr std::int64_t kLatestTimeUs = std::int64_t{1} << 62;
constexpr char kControlIsThere = 1;
constexpr char kControlIsRemoved = 0;

template <typename Number>
void append_number(Number number, std::string& out) {
  char bytes[sizeof(Number)];
  write_number(number, bytes);
  out.append(bytes, sizeof bytes);
}

std::string framed(std::string_view magic, std::size_t count, std::size_t second_count,
                   std::string_view body) {
  std::string out(8, '\0');
  out.append(magic);
  append_number(kVersion, out);
  append_number(std::uint16_t{0}, out);
  append_number(static_cast<std::uint32_t>(count), out);
  append_number(static_cast<std::uint32_t>(second_count), out);
  out.append(body);
  write_number(xxh3_64(out.data() + 8, out.size() - 8), out.data());
  return out;
}

// Takes numbers off the front of bytes. After the first that is not there it gives zeros.
class NumberReader {
 public:
  explicit NumberReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    const std::string_view taken = text(sizeof(Number));
    return taken.empty() ? Number{0} : read_number<Number>(taken.data());
  }
  // Empty where there are not as many.
  std::string_view text(std::size_t size) {
    if (size > bytes_.size()) {
      is_good_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  bool is_good() const { return is_good_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool is_good_ = true;
};

struct Frame {
  std::uint32_t count = 0;
  std::uint32_t second_count = 0;
  std::string_view body;
};

Result<Frame> take_frame(std::string_view bytes, std::string_view magic) {
  if (bytes.size() < kFrameBytes) return Status::corruption("it is too short");
  if (read_number<std::uint64_t>(bytes.data()) != xxh3_64(bytes.data() + 8, bytes.size() - 8)) {
    return Status::corruption("its checksum is wrong");
  }
  if (bytes.substr(8, magic.size()) != magic) return Status::corruption("it is something else");
  if (read_number<std::uint16_t>(bytes.data() + 12) != kVersion) {
    return Status::unsupported_version("a newer modcache wrote it");
  }
  return Frame{read_number<std::uint32_t>(bytes.data() + 16),
               read_number<std::uint32_t>(bytes.data() + 20), bytes.substr(kFrameBytes)};
}

std::string hex_of_number(std::uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>((number >> shift) & 0xff));
  }
  return hex_of(bytes);
}

std::size_t shared_prefix(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first -
                                  a.begin());
}

// Reads what encode_place() wrote. False where it is malformed.
bool read_place(NumberReader& reader, const std::vector<std::uint64_t>& writers, Place& place) {
  const auto kind = reader.number<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(PlaceKind::kControl)) return false;
  place = Place{};
  place.kind = static_cast<PlaceKind>(kind);
  place.time_us = reader.number<std::int64_t>();
  if (place.time_us < 0 || place.time_us > kLatestTimeUs) return false;
  if (place.kind == PlaceKind::kPacked) {
    const auto writer = reader.number<std::uint32_t>();
    if (writer >= writers.size()) return false;
    place.writer = writers[writer];
    place.pack = reader.number<std::uint32_t>();
    place.offset = reader.number<std::uint32_t>();
    place.size = reader.number<std::uint32_t>();
  }
  return reader.is_good();
}

}  // namespace

std::string head_path(std::uint64_t writer) { return "/w/" + hex_of_number(writer) + "/head"; }

std::string segment_path(std::uint64_t writer, const SegmentRange& range) {
  return "/w/" + hex_of_number(writer) + "/" + std::to_string(range.first) + "-" +
         std::to_string(range.last);
}

std::string pack_path(std::uint64_t writer, std::uint32_t pack) {
  return "/p/" + hex_of_number(writer) + "/" + std::to_string(pack);
}

std::string whole_path(const Digest128& name) { return "/v/" + name.hex(); }

std::string control_path(const Digest128& name) { return "/c/" + name.hex(); }

std::string encode_segment(std::vector<PlacedName> names) {
  std::sort(names.begin(), names.end(),
            [](const PlacedName& a, const PlacedName& b) { return a.name < b.name; });
  std::string table;
  std::unordered_map<std::uint64_t, std::uint32_t> writers;
  std::string places;
  std::string_view before;
  for (const PlacedName& one : names) {
    const std::size_t shared = shared_prefix(before, one.name);
    append_number(static_cast<std::uint16_t>(shared), places);
    append_number(static_cast<std::uint16_t>(one.name.size() - shared), places);
    places.append(one.name, shared, std::string::npos);
    append_number(static_cast<std::uint8_t>(one.place.kind), places);
    append_number(one.place.time_us, places);
    before = one.name;
    if (one.place.kind != PlaceKind::kPacked) continue;
    const auto [writer, is_new] =
        writers.emplace(one.place.writer, static_cast<std::uint32_t>(writers.size()));
    if (is_new) append_number(one.place.writer, table);
    append_number(writer->second, places);
    append_number(one.place.pack, places);
    append_number(one.place.offset, places);
    append_number(one.place.size, places);
  }
  return framed(kSegmentMagic, names.size(), writers.size(), table + places);
}

Status decode_segment(std::string_view bytes, const VisitPlace& visit) {
  if (bytes.size() > kMostSegmentBytes) return Status::corruption("it is too long");
  MODCACHE_ASSIGN_OR_RETURN(const Frame frame, take_frame(bytes, kSegmentMagic));
  NumberReader reader(frame.body);
  if (frame.second_count > frame.body.size() / sizeof(std::uint64_t)) {
    return Status::corruption("it has more writers than bytes");
  }
  std::vector<std::uint64_t> writers;
  writers.reserve(frame.second_count);
  for (std::uint32_t i = 0; i < frame.second_count; ++i) {
    writers.push_back(reader.number<std::uint64_t>());
  }
  std::string name;
  for (std::uint32_t i = 0; i < frame.count; ++i) {
    const std::size_t shared = reader.number<std::uint16_t>();
    const std::size_t rest = reader.number<std::uint16_t>();
    if (shared > name.size() || shared + rest > kMostNameBytes) {
      return Status::corruption("a name is malformed");
    }
    name.resize(shared);
    name.append(reader.text(rest));
    Place place;
    if (!read_place(reader, writers, place)) return Status::corruption("a place is malformed");
    visit(name, place);
  }
  return reader.left() == 0 ? Status::ok() : Status::corruption("it has bytes left over");
}

std::string encode_head(const Head& head) {
  std::string body;
  append_number(head.writer, body);
  for (const SegmentRange& range : head.segments) {
    append_number(range.first, body);
    append_number(range.last, body);
    append_number(range.size_bytes, body);
  }
  return framed(kHeadMagic, head.segments.size(), 0, body);
}

Result<Head> decode_head(std::string_view bytes, std::uint64_t writer) {
  MODCACHE_ASSIGN_OR_RETURN(const Frame frame, take_frame(bytes, kHeadMagic));
  NumberReader reader(frame.body);
  Head head;
  head.writer = reader.number<std::uint64_t>();
  if (head.writer != writer) return Status::corruption("it is another writer's");
  if (frame.count > kMostSegments || reader.left() != frame.count * kHeadRangeBytes) {
    return Status::corruption("its count is wrong");
  }
  for (std::uint32_t i = 0; i < frame.count; ++i) {
    SegmentRange range;
    range.first = reader.number<std::uint32_t>();
    range.last = reader.number<std::uint32_t>();
    range.size_bytes = reader.number<std::uint32_t>();
    if (range.first == 0 || range.first > range.last || range.size_bytes > kMostSegmentBytes) {
      return Status::corruption("a range is wrong");
    }
    head.segments.push_back(range);
  }
  return head;
}

std::string encode_writers(const std::vector<ListedWriter>& writers) {
  std::string body;
  for (const ListedWriter& writer : writers) {
    append_number(writer.id, body);
    append_number(writer.announced_us, body);
  }
  return framed(kWritersMagic, writers.size(), 0, body);
}

Result<std::vector<ListedWriter>> decode_writers(std::string_view bytes) {
  MODCACHE_ASSIGN_OR_RETURN(const Frame frame, take_frame(bytes, kWritersMagic));
  NumberReader reader(frame.body);
  if (frame.count > kMostWriters || reader.left() != frame.count * kListedWriterBytes) {
    return Status::corruption("its count is wrong");
  }
  std::vector<ListedWriter> writers(frame.count);
  for (ListedWriter& writer : writers) {
    writer.id = reader.number<std::uint64_t>();
    writer.announced_us = reader.number<std::int64_t>();
  }
  return writers;
}

std::string encode_control(std::string_view value) {
  std::string bytes(1, kControlIsThere);
  bytes.append(value);
  return bytes;
}

std::string encode_removed_control() { return std::string(1, kControlIsRemoved); }

bool decode_control(std::string_view bytes, std::string_view& value) {
  if (bytes.empty() || bytes.front() != kControlIsThere) return false;
  value = bytes.substr(1);
  return true;
}

}  // namespace modcache::backends
