// Format: 8 bytes little-endian header length, that many bytes of JSON, then the data. Offsets count from the
// data's start.
#include "engine/model/safetensors.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace keyhole {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the official reader's limit
constexpr std::size_t kMostHeaderValues = 4'000'000;    // half a million tensors
constexpr std::size_t kMostExtents = 16;

/// Returns the bits of an element, or nullopt for a type that the format has added since.
std::optional<std::size_t> element_bits(const std::string& dtype) {
    static const std::map<std::string, std::size_t> bits = {
        {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"U16", 16},
        {"I16", 16}, {"F16", 16}, {"BF16", 16}, {"U32", 32},    {"I32", 32},    {"F32", 32},    {"U64", 64},
        {"I64", 64}, {"F64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},
    };
    const auto found = bits.find(dtype);
    if (found == bits.end()) return std::nullopt;
    return found->second;
}

std::optional<DType> weight_type(const std::string& dtype) {
    if (dtype == "F32") return DType::f32;
    if (dtype == "F16") return DType::f16;
    if (dtype == "BF16") return DType::bf16;
    return std::nullopt;
}

[[noreturn]] void broken(const std::filesystem::path& path, const std::string& what) {
    fail(ErrorCode::bad_file, "cannot read {}: {}; copy or download the file again", path.string(), what);
}

/// Returns [begin, end] from a JSON array of two counts, or nullopt for anything else.
std::optional<std::pair<std::uint64_t, std::uint64_t>> offsets_from(const Json& json) {
    if (!json.is_array() || json.size() != 2 || !json[0].is_number_unsigned() ||
        !json[1].is_number_unsigned()) {
        return std::nullopt;
    }
    return std::pair(json[0].get<std::uint64_t>(), json[1].get<std::uint64_t>());
}

/// Returns non-negative extents whose product does not overflow, or nullopt.
std::optional<std::vector<std::int64_t>> shape_from(const Json& json, std::uint64_t& n_elements) {
    if (!json.is_array() || json.size() > kMostExtents) return std::nullopt;
    std::vector<std::int64_t> shape;
    n_elements = 1;
    for (const Json& extent : json) {
        if (!extent.is_number_unsigned()) return std::nullopt;
        const auto value = extent.get<std::uint64_t>();
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
        if (__builtin_mul_overflow(n_elements, value, &n_elements)) return std::nullopt;
        shape.push_back(static_cast<std::int64_t>(value));
    }
    return shape;
}

Json parse_header(const std::filesystem::path& path, std::span<const std::byte> file,
                  std::size_t& data_begin) {
    if (file.size() < kLengthBytes) {
        broken(path, fmt::format("it has {} bytes, too few for a safetensors file", file.size()));
    }
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;)
        length = length << 8 | std::to_integer<std::uint64_t>(file[i]);
    if (length > kMaxHeaderBytes) {
        broken(path, fmt::format("its header claims {} bytes, so this is no safetensors file", length));
    }
    if (length > file.size() - kLengthBytes) {
        broken(path, fmt::format("its header claims {} bytes but only {} follow: it is cut off", length,
                                 file.size() - kLengthBytes));
    }
    data_begin = kLengthBytes + to_index(length);
    const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
    return json_object_of(text, path, kMostHeaderValues, "its header");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
    refuse_lfs_pointer(path_, file_.bytes());
    const Json header = parse_header(path_, file_.bytes(), data_begin_);
    const std::uint64_t data_size = file_.bytes().size() - data_begin_;
    for (const auto& [name, tensor] : header.items()) {
        if (name == "__metadata__") continue;
        const std::string label = shown_text(name);
        if (!tensor.is_object() || !tensor.contains("dtype") || !tensor["dtype"].is_string() ||
            !tensor.contains("shape") || !tensor.contains("data_offsets")) {
            broken(path_, fmt::format("tensor {} lacks dtype, shape or data_offsets", label));
        }
        Entry entry;
        entry.dtype = tensor["dtype"].get<std::string>();
        std::uint64_t n_elements = 0;
        const auto shape = shape_from(tensor["shape"], n_elements);
        if (!shape) broken(path_, fmt::format("tensor {} has an impossible shape", label));
        entry.shape = *shape;
        const auto offsets = offsets_from(tensor["data_offsets"]);
        if (!offsets || offsets->first > offsets->second) {
            broken(path_, fmt::format("tensor {} has impossible data_offsets", label));
        }
        if (offsets->second > data_size) {
            broken(path_,
                   fmt::format("tensor {} ends at byte {} of the data but there are {}: the file is cut off",
                               label, offsets->second, data_size));
        }
        entry.begin = to_index(offsets->first);
        entry.end = to_index(offsets->second);
        if (const auto bits = element_bits(entry.dtype)) {
            std::uint64_t n_bits = 0;
            if (__builtin_mul_overflow(n_elements, *bits, &n_bits) || n_bits % 8 != 0 ||
                n_bits / 8 != entry.end - entry.begin) {
                broken(path_, fmt::format("tensor {} has {} elements of {} but {} bytes", label, n_elements,
                                          entry.dtype, entry.end - entry.begin));
            }
        }
        entries_.emplace(name, std::move(entry));
    }

    // Holes between tensors are harmless; overlaps mean that the header is wrong.
    std::vector<std::map<std::string, Entry>::const_iterator> order;
    for (auto it = entries_.cbegin(); it != entries_.cend(); ++it) {
        if (it->second.begin < it->second.end) order.push_back(it);
    }
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a->second.begin < b->second.begin; });
    for (std::size_t i = 1; i < order.size(); ++i) {
        if (order[i]->second.begin < order[i - 1]->second.end) {
            broken(path_, fmt::format("tensors {} and {} overlap", shown_text(order[i - 1]->first),
                                      shown_text(order[i]->first)));
        }
    }
}

bool SafetensorsFile::contains(const std::string& name) const {
    return entries_.count(name) != 0;
}

StoredTensor SafetensorsFile::tensor(const std::string& name, bool as_bytes) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
        fail(ErrorCode::bad_file,
             "cannot find tensor {} in {}; the file holds {} others: is it the right model?", name,
             path_.string(), entries_.size());
    }
    const Entry& entry = found->second;
    const auto dtype =
        as_bytes && entry.dtype == "U8" ? std::optional(DType::mxfp4) : weight_type(entry.dtype);
    if (!dtype || as_bytes != is_quantised(*dtype)) {
        fail(ErrorCode::unsupported,
             "cannot use tensor {} in {}: its type is {}; convert the model to F32, F16 or BF16", name,
             path_.string(), shown_text(entry.dtype));
    }
    return {*dtype, entry.shape, file_.bytes().data() + data_begin_ + entry.begin};
}

std::vector<std::string> SafetensorsFile::names() const {
    std::vector<std::string> names;
    names.reserve(entries_.size());
    for (const auto& [name, entry] : entries_) names.push_back(name);
    return names;
}

}  // namespace keyhole
