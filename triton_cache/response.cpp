// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/response.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "tensor/value_header.h"

namespace modcache::triton_cache {
namespace {

using NewResponse = std::shared_ptr<Response>;

constexpr std::size_t kAlignmentBytes = 64;  // FORMAT.md, "Payload"
constexpr std::uint8_t kUint8 = 0;           // c10::ScalarType
// Sums of sizes up to this do not overflow.
constexpr std::size_t kMostBufferBytes = std::numeric_limits<std::int64_t>::max() / 1024;

std::string header_of(const Response& response) {
  tensor::ValueHeader header;
  header.root.kind = tensor::Node::Kind::kTuple;
  header.root.children.resize(response.buffers());
  for (std::size_t i = 0; i < response.buffers(); ++i) {
    tensor::TensorLayout layout;
    layout.dtype = kUint8;
    layout.stored_dtype = kUint8;
    layout.sizes = {static_cast<std::int64_t>(response.buffer(i).size())};
    header.tensors.push_back(std::move(layout));
  }
  return tensor::encode_value_header(header);
}

bool is_tuple_of_tensors(const tensor::Node& root) {
  if (root.kind != tensor::Node::Kind::kTuple) return false;
  for (const tensor::Node& child : root.children) {
    if (child.kind != tensor::Node::Kind::kTensor) return false;
  }
  return true;
}

Result<std::vector<std::size_t>> sizes_in(std::string_view header) {
  MODCACHE_ASSIGN_OR_RETURN(const auto decoded, tensor::decode_value_header(header));
  const auto other = Status::corruption("the entry is no response of Triton");
  if (decoded.codec != 0 || !is_tuple_of_tensors(decoded.root)) return other;
  std::vector<std::size_t> sizes_bytes;
  for (const tensor::TensorLayout& layout : decoded.tensors) {
    if (layout.dtype != kUint8 || layout.sizes.size() != 1) return other;
    sizes_bytes.push_back(static_cast<std::size_t>(layout.sizes.front()));
  }
  return sizes_bytes;
}

Result<std::shared_ptr<const cache::Value>> read_response(const cache::FoundRows& found,
                                                          std::size_t row) {
  MODCACHE_ASSIGN_OR_RETURN(auto response, Response::allocate_for(found.header(row).value_header,
                                                                  found.payload_size_bytes(row)));
  MODCACHE_RETURN_IF_ERROR(found.read(row, response->writable_payload()));
  if (!response->is_sound()) {
    return Status::corruption("the bytes are no response that Triton can unpack");
  }
  return std::shared_ptr<const cache::Value>(std::move(response));
}

class PackedReader {
 public:
  explicit PackedReader(std::string_view bytes) : rest_(bytes) {}

  bool is_at_end() const { return rest_.empty(); }

  // Triton writes numbers as the machine has them.
  template <typename Number>
  bool read(Number& number) {
    if (rest_.size() < sizeof number) return false;
    std::memcpy(&number, rest_.data(), sizeof number);
    rest_.remove_prefix(sizeof number);
    return true;
  }
  // A size, and as many bytes.
  template <typename Size>
  bool read_sized(std::string_view& bytes) {
    Size size = 0;
    if (!read(size) || size > rest_.size()) return false;
    bytes = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(static_cast<std::size_t>(size));
    return true;
  }

 private:
  std::string_view rest_;
};

bool is_output(std::string_view bytes) {
  PackedReader reader(bytes);
  std::string_view name;
  std::string_view dtype;
  std::string_view shape;
  std::string_view data;
  return reader.read_sized<std::uint32_t>(name) && reader.read_sized<std::uint32_t>(dtype) &&
         reader.read_sized<std::uint32_t>(shape) && shape.size() % sizeof(std::int64_t) == 0 &&
         reader.read_sized<std::uint64_t>(data) && reader.is_at_end();
}

// Facts about one buffer, which the server fills in or copies.
class BufferAttributes {
 public:
  explicit BufferAttributes(const TritonApi& api) : api_(api) {}
  ~BufferAttributes() {
    if (attributes_ != nullptr) {
      const Status ignored = status_of(api_, api_.attributes_delete(attributes_));
      (void)ignored;
    }
  }
  BufferAttributes(const BufferAttributes&) = delete;
  BufferAttributes& operator=(const BufferAttributes&) = delete;

  Status make() { return status_of(api_, api_.attributes_new(&attributes_)); }
  TritonApi::Attributes* get() const { return attributes_; }

 private:
  const TritonApi& api_;
  TritonApi::Attributes* attributes_ = nullptr;
};

Result<std::size_t> size_asked_for(const TritonApi& api, TritonApi::Entry* entry,
                                   std::size_t index) {
  BufferAttributes attributes(api);
  MODCACHE_RETURN_IF_ERROR(attributes.make());
  void* base = nullptr;  // Null: the bytes come by copy().
  MODCACHE_RETURN_IF_ERROR(
      status_of(api, api.entry_get_buffer(entry, index, &base, attributes.get())));
  std::size_t size_bytes = 0;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.attributes_byte_size(attributes.get(), &size_bytes)));
  MemoryType type = MemoryType::kCpu;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.attributes_memory_type(attributes.get(), &type)));
  if (type != MemoryType::kCpu && type != MemoryType::kCpuPinned) {
    return Status::invalid_argument("a response lies in the memory of a GPU");
  }
  return size_bytes;
}

}  // namespace

Result<NewResponse> Response::allocate(const std::vector<std::size_t>& sizes_bytes) {
  if (sizes_bytes.empty() || sizes_bytes.size() > kMostBuffers) {
    return Status::invalid_argument("a response has " + std::to_string(sizes_bytes.size()) +
                                    " buffers, but may have 1 to " + std::to_string(kMostBuffers));
  }
  const NewResponse response(new Response);
  std::size_t end = 0;
  for (const std::size_t size_bytes : sizes_bytes) {
    if (size_bytes == 0 || size_bytes > kMostBufferBytes) {
      return Status::invalid_argument("a buffer of a response has " + std::to_string(size_bytes) +
                                      " bytes");
    }
    const std::size_t offset = (end + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    response->places_.push_back({offset, size_bytes});
    end = offset + size_bytes;
  }
  auto* const bytes = new (std::nothrow) std::byte[end];
  if (bytes == nullptr) return Status::no_space("no memory for a response");
  response->payload_.reset(bytes, std::default_delete<std::byte[]>());
  response->payload_size_bytes_ = end;
  for (std::size_t i = 1; i < response->places_.size(); ++i) {
    const BufferPlace& before = response->places_[i - 1];
    const std::size_t gap = before.offset + before.size_bytes;
    std::memset(bytes + gap, 0, response->places_[i].offset - gap);
  }
  return response;
}

Result<NewResponse> Response::allocate_for(std::string_view header,
                                           std::size_t payload_size_bytes) {
  MODCACHE_ASSIGN_OR_RETURN(const auto sizes_bytes, sizes_in(header));
  // A header that promises more than there is gets no memory for it.
  std::size_t sum = 0;
  for (const std::size_t size_bytes : sizes_bytes) {
    if (size_bytes > payload_size_bytes - sum) {
      return Status::corruption("the response's header does not fit its payload");
    }
    sum += size_bytes;
  }
  auto response = allocate(sizes_bytes);
  if (response.status().code() == StatusCode::kInvalidArgument) {
    return Status::corruption(response.status().message());
  }
  if (response.is_ok() && response.value()->payload_size_bytes_ != payload_size_bytes) {
    return Status::corruption("the response's header does not fit its payload");
  }
  return response;
}

bool Response::is_sound() const {
  for (std::size_t i = 0; i < buffers(); ++i) {
    if (!is_packed_response(buffer(i))) return false;
  }
  return true;
}

cache::Written Response::write(codec::Codec) const {
  return {header_of(*this), SharedBytes{payload_, payload_.get(), payload_size_bytes_}};
}

std::vector<Result<std::shared_ptr<const cache::Value>>> ResponseFormat::read_all(
    cache::Form, const cache::FoundRows& found, const std::vector<std::size_t>& rows) const {
  std::vector<Result<std::shared_ptr<const cache::Value>>> values;
  values.reserve(rows.size());
  for (const std::size_t row : rows) values.push_back(read_response(found, row));
  return values;
}

std::shared_ptr<const cache::Value> ResponseFormat::moved(std::shared_ptr<const cache::Value> value,
                                                          const cache::Place&) const {
  return value;
}

bool is_packed_response(std::string_view bytes) {
  PackedReader reader(bytes);
  std::uint32_t outputs = 0;
  if (!reader.read(outputs) || outputs == 0) return false;
  for (std::uint32_t i = 0; i < outputs; ++i) {
    std::string_view output;
    if (!reader.read_sized<std::uint64_t>(output) || !is_output(output)) return false;
  }
  return reader.is_at_end();
}

Status status_of(const TritonApi& api, TritonApi::Error error) {
  if (error == nullptr) return Status::ok();
  const char* const message = api.error_message(error);
  auto status = Status::io_error(message != nullptr ? message : "an error without a message");
  api.error_delete(error);
  return status;
}

Result<std::vector<std::size_t>> sizes_asked_for(const TritonApi& api, TritonApi::Entry* entry) {
  std::size_t count = 0;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.entry_buffer_count(entry, &count)));
  if (count > Response::kMostBuffers) {
    return Status::invalid_argument("a response has " + std::to_string(count) + " buffers");
  }
  std::vector<std::size_t> sizes_bytes;
  sizes_bytes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    MODCACHE_ASSIGN_OR_RETURN(const auto size_bytes, size_asked_for(api, entry, i));
    sizes_bytes.push_back(size_bytes);
  }
  return sizes_bytes;
}

Status fill(const TritonApi& api, Response& response, TritonApi::Entry* entry,
            TRITONCACHE_Allocator* allocator) {
  for (std::size_t i = 0; i < response.buffers(); ++i) {
    // The entry has the attributes already.
    MODCACHE_RETURN_IF_ERROR(status_of(
        api, api.entry_set_buffer(entry, i, response.writable_buffer(i), /*attributes=*/nullptr)));
  }
  return status_of(api, api.copy(allocator, entry));
}

Status copy_out(const TritonApi& api, const Response& response, TritonApi::Entry* entry,
                TRITONCACHE_Allocator* allocator) {
  BufferAttributes attributes(api);
  MODCACHE_RETURN_IF_ERROR(attributes.make());
  MODCACHE_RETURN_IF_ERROR(
      status_of(api, api.attributes_set_memory_type(attributes.get(), MemoryType::kCpu)));
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.attributes_set_memory_type_id(attributes.get(), 0)));
  for (std::size_t i = 0; i < response.buffers(); ++i) {
    const std::string_view buffer = response.buffer(i);
    MODCACHE_RETURN_IF_ERROR(
        status_of(api, api.attributes_set_byte_size(attributes.get(), buffer.size())));
    // The server only reads it.
    void* const base = const_cast<char*>(buffer.data());
    MODCACHE_RETURN_IF_ERROR(status_of(api, api.entry_add_buffer(entry, base, attributes.get())));
  }
  return status_of(api, api.copy(allocator, entry));
}

}  // namespace modcache::triton_cache
