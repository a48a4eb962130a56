// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace modcache::codec {
namespace {

// The number of planes is a template argument, so that the compiler vectorizes the loops.
template <std::size_t kPlanes>
void split(const char* __restrict source, std::size_t elements, char* __restrict target) {
  for (std::size_t k = 0; k < kPlanes; ++k) {
    for (std::size_t i = 0; i < elements; ++i) target[k * elements + i] = source[i * kPlanes + k];
  }
}

template <std::size_t kPlanes>
void join(const char* const* sources, std::size_t elements, char* __restrict target) {
  std::array<const char*, kPlanes> planes;
  for (std::size_t k = 0; k < kPlanes; ++k) planes[k] = sources[k];
  for (std::size_t i = 0; i < elements; ++i) {
    for (std::size_t k = 0; k < kPlanes; ++k) target[i * kPlanes + k] = planes[k][i];
  }
}

constexpr std::size_t kBlockElements = 65536;
// Higher levels took longer on features of real encoders and saved nothing.
constexpr int kLevel = 1;
// Two bytes hold every length of a frame, as a frame is shorter than its plane.
using FrameSize = std::uint16_t;
static_assert(kBlockElements <= std::size_t{UINT16_MAX} + 1);

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

ZSTD_CCtx* create_context(const ZSTD_CCtx*) { return ZSTD_createCCtx(); }
ZSTD_DCtx* create_context(const ZSTD_DCtx*) { return ZSTD_createDCtx(); }

// The memory that one encode or decode needs. It is reused, as making it costs more than decoding a
// small value.
template <typename Context>
class Workplace {
 public:
  Workplace() : context_(create_context(static_cast<Context*>(nullptr))) {
    if (context_ == nullptr) throw std::bad_alloc();
  }
  Context* context() { return context_.get(); }
  char* scratch(std::size_t size_bytes) {
    if (scratch_size_bytes_ < size_bytes) {
      scratch_size_bytes_ = 0;
      scratch_.reset(new char[size_bytes]);
      scratch_size_bytes_ = size_bytes;
    }
    return scratch_.get();
  }

 private:
  std::unique_ptr<Context, FreeContext> context_;
  std::unique_ptr<char[]> scratch_;
  std::size_t scratch_size_bytes_ = 0;
};

// Borrows a workplace for its lifetime. Idle workplaces wait in a few slots of the process. There
// is no lock, so a fork at any moment does no harm, and the slots are never destroyed, so calls may
// come while the process exits.
template <typename Context>
class Borrowed {
 public:
  Borrowed() {
    for (auto& slot : idle) {
      if (slot.load(std::memory_order_relaxed) == nullptr) continue;
      workplace_.reset(slot.exchange(nullptr, std::memory_order_acquire));
      if (workplace_ != nullptr) return;
    }
    workplace_ = std::make_unique<Workplace<Context>>();
  }
  ~Borrowed() {
    for (auto& slot : idle) {
      Workplace<Context>* empty = nullptr;
      if (slot.compare_exchange_strong(empty, workplace_.get(), std::memory_order_release,
                                       std::memory_order_relaxed)) {
        static_cast<void>(workplace_.release());
        return;
      }
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workplace<Context>* operator->() { return workplace_.get(); }

 private:
  static inline std::array<std::atomic<Workplace<Context>*>, 16> idle{};
  std::unique_ptr<Workplace<Context>> workplace_;
};

// Writes one plane to `out`, which has room for `room` bytes. Returns the bytes written, or 0 when
// the plane does not fit.
std::size_t write_plane(ZSTD_CCtx* context, const char* plane, std::size_t size_bytes, char* out,
                        std::size_t room) {
  if (room <= sizeof(FrameSize)) return 0;
  char* const body = out + sizeof(FrameSize);
  const std::size_t body_room = room - sizeof(FrameSize);
  // A frame that is not shorter than its plane is not worth decoding.
  std::size_t written = ZSTD_compressCCtx(context, body, std::min(size_bytes - 1, body_room), plane,
                                          size_bytes, kLevel);
  FrameSize frame_size = 0;
  if (ZSTD_isError(written) == 0) {
    frame_size = static_cast<FrameSize>(written);
  } else {
    if (body_room < size_bytes) return 0;
    std::memcpy(body, plane, size_bytes);
    written = size_bytes;
  }
  out[0] = static_cast<char>(frame_size & 0xff);
  out[1] = static_cast<char>(frame_size >> 8);
  return sizeof(FrameSize) + written;
}

// Returns whether `bytes` are one frame of today's format and nothing else. ZSTD_decompress alone
// would also accept several frames, and some of its older formats.
bool is_one_frame(std::string_view bytes) {
  static constexpr std::array<unsigned char, 4> kMagic{0x28, 0xb5, 0x2f, 0xfd};
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0 &&
         ZSTD_findFrameCompressedSize(bytes.data(), bytes.size()) == bytes.size();
}

// Takes one plane of `size_bytes` off the front of `encoded`. Returns where it lies there, or
// `scratch` after decoding into it; null when the plane is damaged.
const char* read_plane(ZSTD_DCtx* context, std::string_view& encoded, std::size_t size_bytes,
                       char* scratch) {
  if (encoded.size() < sizeof(FrameSize)) return nullptr;
  const std::size_t frame_size = static_cast<unsigned char>(encoded[0]) |
                                 std::size_t{static_cast<unsigned char>(encoded[1])} << 8;
  encoded.remove_prefix(sizeof(FrameSize));
  const std::size_t taken = frame_size == 0 ? size_bytes : frame_size;
  if (encoded.size() < taken) return nullptr;
  const std::string_view body = encoded.substr(0, taken);
  encoded.remove_prefix(taken);
  if (frame_size == 0) return body.data();
  if (!is_one_frame(body)) return nullptr;
  const std::size_t written =
      ZSTD_decompressDCtx(context, scratch, size_bytes, body.data(), body.size());
  return written == size_bytes ? scratch : nullptr;
}

}  // namespace

std::string_view codec_name(Codec codec) {
  switch (codec) {
    case Codec::kNone: return "none";
    case Codec::kZstd: return "zstd";
  }
  return {};
}

std::optional<std::string> encode(Codec codec, std::size_t element_size_bytes,
                                  std::string_view bytes) {
  switch (codec) {
    case Codec::kNone: return std::nullopt;
    case Codec::kZstd: return encode_zstd(element_size_bytes, bytes);
  }
  return std::nullopt;
}

Status decode(Codec codec, std::size_t element_size_bytes, std::string_view encoded, void* target,
              std::size_t target_size_bytes) {
  switch (codec) {
    case Codec::kNone:
      if (encoded.size() != target_size_bytes) {
        return Status::corruption("plain bytes of another length than the value's");
      }
      if (!encoded.empty()) std::memcpy(target, encoded.data(), encoded.size());
      return Status::ok();
    case Codec::kZstd:
      return decode_zstd(element_size_bytes, encoded, static_cast<char*>(target),
                         target_size_bytes);
  }
  return Status::unsupported_version("codec " + std::to_string(static_cast<unsigned>(codec)) +
                                     " is not known to this version");
}

std::size_t plane_count(std::size_t element_size_bytes) {
  switch (element_size_bytes) {
    case 2:
    case 4:
    case 8:
    case 16: return element_size_bytes;
    default: return 1;
  }
}

void split_into_planes(const char* source, std::size_t planes, std::size_t elements, char* target) {
  switch (planes) {
    case 2: return split<2>(source, elements, target);
    case 4: return split<4>(source, elements, target);
    case 8: return split<8>(source, elements, target);
    case 16: return split<16>(source, elements, target);
    default: std::memcpy(target, source, elements);
  }
}

void join_planes(const char* const* sources, std::size_t planes, std::size_t elements,
                 char* target) {
  switch (planes) {
    case 2: return join<2>(sources, elements, target);
    case 4: return join<4>(sources, elements, target);
    case 8: return join<8>(sources, elements, target);
    case 16: return join<16>(sources, elements, target);
    default: std::memcpy(target, sources[0], elements);
  }
}

std::optional<std::string> encode_zstd(std::size_t element_size_bytes, std::string_view bytes) {
  const std::size_t planes = plane_count(element_size_bytes);
  const std::size_t elements = bytes.size() / planes;
  if (elements == 0) return std::nullopt;
  const std::size_t tail = bytes.size() % planes;
  Borrowed<ZSTD_CCtx> workplace;
  char* const split = workplace->scratch(planes * std::min(elements, kBlockElements));

  // One byte less than the input: what does not fit is not worth encoding.
  std::string encoded(bytes.size() - 1, '\0');
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < elements; begin += kBlockElements) {
    const std::size_t count = std::min(kBlockElements, elements - begin);
    split_into_planes(bytes.data() + begin * planes, planes, count, split);
    for (std::size_t k = 0; k < planes; ++k) {
      const std::size_t written = write_plane(workplace->context(), split + k * count, count,
                                              encoded.data() + end, encoded.size() - end);
      if (written == 0) return std::nullopt;
      end += written;
    }
  }
  if (encoded.size() - end < tail) return std::nullopt;
  std::memcpy(encoded.data() + end, bytes.data() + bytes.size() - tail, tail);
  encoded.resize(end + tail);
  encoded.shrink_to_fit();
  return encoded;
}

Status decode_zstd(std::size_t element_size_bytes, std::string_view encoded, char* target,
                   std::size_t target_size_bytes) {
  const std::size_t planes = plane_count(element_size_bytes);
  const std::size_t elements = target_size_bytes / planes;
  const std::size_t tail = target_size_bytes % planes;
  Borrowed<ZSTD_DCtx> workplace;
  char* const scratch = workplace->scratch(planes * std::min(elements, kBlockElements));

  std::array<const char*, kMaxPlanes> sources{};
  for (std::size_t begin = 0; begin < elements; begin += kBlockElements) {
    const std::size_t count = std::min(kBlockElements, elements - begin);
    for (std::size_t k = 0; k < planes; ++k) {
      sources[k] = read_plane(workplace->context(), encoded, count, scratch + k * count);
      if (sources[k] == nullptr) return Status::corruption("a compressed plane is damaged");
    }
    join_planes(sources.data(), planes, count, target + begin * planes);
  }
  if (encoded.size() != tail) {
    return Status::corruption("a compressed value has another length than its bytes");
  }
  if (tail != 0) std::memcpy(target + target_size_bytes - tail, encoded.data(), tail);
  return Status::ok();
}

}  // namespace modcache::codec
