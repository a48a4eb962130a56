// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/segment_beginning.h"

#include "fs/file_system.h"
#include "store/segment/record.h"

namespace modcache::store {

SegmentBeginning beginning_of(const Directory& directory, std::uint64_t segment) {
  auto file = directory.file_system().open(directory.segment_path(segment), fs::OpenMode::kRead);
  if (!file.is_ok()) return {};
  char bytes[kSegmentHeaderSizeBytes + kRecordFixedSizeBytes];
  auto count = file.value()->read_at(0, bytes, sizeof bytes);
  if (!count.is_ok() || count.value() != sizeof bytes) return {};
  auto header = decode_segment_header({bytes, kSegmentHeaderSizeBytes});
  auto first = peek_record_head({bytes + kSegmentHeaderSizeBytes, kRecordFixedSizeBytes});
  if (!header.is_ok() || !first.is_ok()) return {};
  return {first.value().sequence, header.value().created_at_us};
}

}  // namespace modcache::store
