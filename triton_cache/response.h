// SPDX-License-Identifier: Apache-2.0
//
// Response: what Triton gives a cache for one key, some buffers of bytes. On disk it is a tuple of
// tensors of uint8 (FORMAT.md, "Value header"), one for each buffer, so that all that looks at a
// directory understands it.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/value.h"
#include "triton_cache/triton_api.h"

namespace modcache::triton_cache {

class Response final : public cache::Value {
 public:
  // Triton makes one buffer for each response to a request, and caches no request that has several.
  static constexpr std::size_t kMostBuffers = 256;

  // Buffers of these sizes whose bytes are to be written before anybody else has the response.
  // kInvalidArgument: no buffers, too many, or an empty one. kNoSpace: no memory for them.
  static Result<std::shared_ptr<Response>> allocate(const std::vector<std::size_t>& sizes_bytes);
  // The same for the response that a value's header describes; kCorruption: it describes none, or
  // not one with a payload of this size.
  static Result<std::shared_ptr<Response>> allocate_for(std::string_view header,
                                                        std::size_t payload_size_bytes);

  std::size_t buffers() const { return places_.size(); }
  std::string_view buffer(std::size_t i) const {
    return {reinterpret_cast<const char*>(payload_.get()) + places_[i].offset,
            places_[i].size_bytes};
  }
  void* writable_buffer(std::size_t i) { return payload_.get() + places_[i].offset; }
  // All buffers together, as they are stored.
  void* writable_payload() { return payload_.get(); }
  std::string_view payload() const {
    return {reinterpret_cast<const char*>(payload_.get()), payload_size_bytes_};
  }
  // Returns whether each buffer is what Triton can unpack (packed_response.h).
  bool is_sound() const;

  std::size_t size_bytes() const override { return sizeof *this + payload_size_bytes_; }
  std::size_t payload_size_bytes() const override { return payload_size_bytes_; }
  // The bytes as they are: nobody knows of what size their numbers are.
  cache::Written write(codec::Codec codec) const override;

 private:
  struct BufferPlace {
    std::size_t offset;
    std::size_t size_bytes;
  };

  Response() = default;

  std::vector<BufferPlace> places_;
  std::shared_ptr<std::byte> payload_;
  std::size_t payload_size_bytes_ = 0;
};

class ResponseFormat final : public cache::ValueFormat {
 public:
  std::vector<Result<std::shared_ptr<const cache::Value>>> read_all(
      cache::Form form, const cache::FoundRows& found,
      const std::vector<std::size_t>& rows) const override;
  // Responses stay in the host's memory.
  std::shared_ptr<const cache::Value> moved(std::shared_ptr<const cache::Value> value,
                                            const cache::Place& place) const override;
};

// How Triton packs a response into the buffer that it gives a cache, as its sources have it
// (src/cache_entry.cc, 2023 to 2026):
//
//     packed ::= u32(number of outputs) output*
//     output ::= u64(bytes that follow) text(name) text(dtype) text(i64*: shape) u64(size) byte*
//     text   ::= u32(size) byte*
//
// Triton unpacks without looking at a bound, so bytes that are not of this form would end the
// server: nothing else is stored, and nothing else is handed out.
// Returns whether `bytes` are exactly one response that has an output. One without any is what a
// model leaves that failed.
bool is_packed_response(std::string_view bytes);

// The buffers of Triton's cache entries. Errors of the server's functions become a Status.
// Takes over an error of the server's; ok for null.
Status status_of(const TritonApi& api, TritonApi::Error error);

// The sizes of the buffers that an entry asks for. kInvalidArgument: they are not for the host's
// memory, or too many.
Result<std::vector<std::size_t>> sizes_asked_for(const TritonApi& api, TritonApi::Entry* entry);

// Has the server fill the response's buffers.
Status fill(const TritonApi& api, Response& response, TritonApi::Entry* entry,
            TRITONCACHE_Allocator* allocator);

// Has the server make a response of these buffers, which it copies.
Status copy_out(const TritonApi& api, const Response& response, TritonApi::Entry* entry,
                TRITONCACHE_Allocator* allocator);

}  // namespace modcache::triton_cache
