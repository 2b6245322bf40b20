#include "engine/model/checkpoint.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapping_guard.h"
#include "engine/base/resource_use.h"
#include "engine/model/digest.h"
#include "engine/model/folder_files.h"
#include "engine/model/other_formats.h"
#include "engine/model/quantised_blocks.h"
#include "engine/model/weight_check.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr JsonBounds kIndexBounds{std::size_t{32} << 20, 1'000'000};

std::string shape_text(const std::vector<std::int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Returns the shard file of every tensor from the index.
std::map<std::string, std::string> read_index(const fs::path& path) {
    const nlohmann::json index = read_json_object(path, kIndexBounds);
    if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
        fail(ErrorCode::bad_file, "cannot read {}: it has no weight_map; copy or download the file again",
             path.string());
    }
    std::map<std::string, std::string> files;
    for (const auto& [name, file] : index["weight_map"].items()) {
        const fs::path plain = file.is_string() ? file.get<std::string>() : std::string();
        if (plain.empty() || plain != plain.filename() || plain == ".." || plain == ".") {
            fail(ErrorCode::bad_file,
                 "cannot use {}: the file of tensor {} is not a plain file name; check the file",
                 path.string(), shown_text(name));
        }
        files[name] = plain.string();
    }
    return files;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
    const fs::path single = folder / kSingleFile, index = folder / kIndexFile;
    if (is_there(single)) {
        shards_.emplace_back(single);
        for (const std::string& name : shards_[0].names()) shard_of_[name] = 0;
        return;
    }
    if (!is_there(index)) {
        const std::string hint = conversion_hint(folder);
        fail(ErrorCode::bad_file, "cannot find weights in {}: it has neither {} nor {}; {}", folder.string(),
             kSingleFile, kIndexFile, hint.empty() ? "name a Hugging Face model folder" : hint);
    }
    open_shards(index);
}

void Checkpoint::open_shards(const fs::path& index) {
    const std::map<std::string, std::string> file_of = read_index(index);
    std::map<std::string, std::size_t> shard_by_file;
    for (const auto& [name, file] : file_of) shard_by_file[file] = 0;
    for (auto& [file, shard] : shard_by_file) {  // ascending by name: the digest depends on it
        if (!is_there(folder_ / file)) {
            fail(ErrorCode::bad_file, "cannot find {}, which {} lists; copy or download the missing shard",
                 shown_text((folder_ / file).string()), kIndexFile);
        }
        shard = shards_.size();
        shards_.emplace_back(folder_ / file);
    }
    for (const auto& [name, file] : file_of) {
        const std::size_t shard = shard_by_file[file];
        if (shards_[shard].contains(name)) shard_of_[name] = shard;
    }
    const std::size_t n_listed = shard_of_.size();
    for (std::size_t shard = 0; shard < shards_.size(); ++shard)
        for (const std::string& name : shards_[shard].names()) shard_of_.emplace(name, shard);
    for (const auto& [name, file] : file_of)
        if (shard_of_.count(name) == 0) {  // it may lie in a shard that the index leaves out
            open_unlisted();
            break;
        }
    if (shard_of_.size() > n_listed)
        add_note(
            fmt::format("{} names the wrong file, or none, for {} of the tensors; they were found in "
                        "another file of the folder",
                        kIndexFile, shard_of_.size() - n_listed));
}

void Checkpoint::add_note(std::string_view line) {
    notes_.emplace_back(line);
}

void Checkpoint::open_unlisted() {
    std::vector<fs::path> more;
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder_, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
        const std::string file = entry->path().filename().string();
        const bool is_open = std::any_of(shards_.begin(), shards_.end(), [&](const SafetensorsFile& shard) {
            return shard.path().filename() == file;
        });
        if (!is_open && file.starts_with("model-") && file.ends_with(".safetensors"))
            more.push_back(entry->path());
    }
    std::sort(more.begin(), more.end());
    for (const fs::path& path : more) {
        shards_.emplace_back(path);
        for (const std::string& name : shards_.back().names()) shard_of_.emplace(name, shards_.size() - 1);
    }
}

void Checkpoint::fail_without(const std::string& name, const std::string& remedy) const {
    const GgufPlace* place = place_of(name);
    fail(ErrorCode::bad_file, "cannot find tensor {} in {}; {}", place == nullptr ? name : place->tensor,
         folder_.string(), remedy);
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> names;
    for (const auto& [name, shard] : shard_of_) names.push_back(name);
    return names;
}

Checkpoint::Checkpoint(GgufFile file, std::map<std::string, GgufPlace> places)
    : folder_(file.path()), places_(std::move(places)) {
    gguf_.push_back(std::move(file));
}

const GgufPlace* Checkpoint::place_of(const std::string& name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &place->second;
}

bool Checkpoint::contains(const std::string& name) const {
    if (gguf_.empty()) return shard_of_.count(name) != 0;
    const GgufPlace* place = place_of(name);
    return place != nullptr && gguf_.front().contains(place->tensor);
}

StoredTensor Checkpoint::found(const std::string& name, std::string& label, fs::path& file, bool as_bytes) {
    label = name;
    file = folder_;
    if (!gguf_.empty()) {
        const GgufPlace* place = place_of(name);
        if (place != nullptr) label = place->tensor;
        read_.insert(label);
        for (const GgufFile& part : gguf_.front().parts())
            if (part.contains(label)) file = part.path();
        return gguf_.front().tensor(label);
    }
    const auto shard = shard_of_.find(name);
    if (shard == shard_of_.end()) {
        const std::string first = shard_of_.empty() ? "none" : shown_text(shard_of_.begin()->first);
        fail(ErrorCode::bad_file,
             "cannot find tensor {} in {} ({} tensors, the first is {}); the weights do not belong to its "
             "config.json",
             name, shards_.size() == 1 ? shards_[0].path().string() : folder_.string(), shard_of_.size(),
             first);
    }
    file = shards_[shard->second].path();
    read_.insert(name);
    return shards_[shard->second].tensor(name, as_bytes);
}

void Checkpoint::check_shape(const StoredTensor& stored, const std::vector<std::int64_t>& wanted,
                             const std::string& label, const fs::path& file) const {
    if (stored.shape == wanted) return;
    fail(ErrorCode::bad_file, "cannot use tensor {} in {}: its shape is {}, {} for {}; {}", label,
         file.string(), shape_text(stored.shape), gguf_.empty() ? "config.json asks" : "the metadata ask",
         shape_text(wanted),
         gguf_.empty() ? "the two files do not belong together" : "convert the model again");
}

Weight Checkpoint::usable(const std::string& label, Weight weight) {
    check(label, weight);  // as it lies in the file
    // The scales of quantised blocks have 16 bits or fewer, and GGUF files align their data to more.
    if (is_quantised(weight.dtype) ||
        reinterpret_cast<std::uintptr_t>(weight.data) % dtype_bytes(weight.dtype) == 0)
        return weight;
    const auto n_bytes = to_index(keyhole::stored_bytes(weight));
    weight.data = copy_later(
        label, n_bytes, [from = weight.data, n_bytes](std::byte* to) { std::memcpy(to, from, n_bytes); });
    return weight;
}

Weight Checkpoint::weight(const std::string& name, std::int64_t rows, std::int64_t cols) {
    std::string label;
    fs::path file;
    const StoredTensor stored = found(name, label, file);
    const GgufPlace* place = place_of(name);
    const bool is_part = place != nullptr && place->first_row >= 0;
    const std::int64_t all = is_part ? place->all_rows : rows;
    check_shape(stored, cols == 0 ? std::vector<std::int64_t>{all} : std::vector<std::int64_t>{all, cols},
                label, file);
    // Kernels read vectors as plain numbers.
    if (cols == 0 && is_quantised(stored.dtype))
        fail(ErrorCode::unsupported, "cannot use tensor {} in {}: a vector of type {} is not supported",
             label, file.string(), dtype_name(stored.dtype));
    Weight weight{stored.dtype, stored.data, rows, cols == 0 ? 1 : cols};
    if (is_part)
        weight.data = stored.data + keyhole::stored_bytes(stored.dtype, place->first_row * weight.cols);
    weight = usable(label, weight);
    return place != nullptr && place->paired_head_dim > 0 ? unpaired(label, weight, place->paired_head_dim)
                                                          : weight;
}

Weight Checkpoint::one_of(const std::string& name, int which, int n, std::int64_t rows, std::int64_t cols) {
    std::string label;
    fs::path file;
    const StoredTensor stored = found(name, label, file);
    check_shape(stored,
                cols == 0 ? std::vector<std::int64_t>{n, rows} : std::vector<std::int64_t>{n, rows, cols},
                label, file);
    Weight weight{stored.dtype, nullptr, rows, cols == 0 ? 1 : cols};
    weight.data = stored.data + which * keyhole::stored_bytes(weight);
    return usable(fmt::format("{} [{}]", label, which), weight);
}

const void* Checkpoint::copy_later(const std::string& name, std::size_t n_bytes,
                                   std::function<void(std::byte*)> fill) {
    ReservedPages pages(n_bytes, fmt::format("a copy of {} of {}", shown_text(name), file_name()));
    return copies_.emplace_back(Copy{std::move(pages), std::move(fill)}).pages.address();
}

std::string Checkpoint::file_name() const {
    return shards_.size() == 1 ? shards_.front().path().string() : folder_.string();
}

std::int64_t Checkpoint::copied_bytes() const {
    std::int64_t n = 0;
    for (const Copy& copy : copies_) n += static_cast<std::int64_t>(copy.pages.size_bytes());
    return n;
}

void Checkpoint::make_copies(const std::function<void(double)>& progress) {
    check_room(
        copied_bytes(),
        fmt::format("{} has weights in another order than they are read in; their copies", file_name()),
        "close other programs or choose a smaller model");
    double n_copied = 0;
    for (Copy& copy : copies_) {
        if (!copy.fill) continue;
        copy.fill(static_cast<std::byte*>(copy.pages.take()));
        if (progress) progress(++n_copied / static_cast<double>(copies_.size()));
    }
    for (Copy& copy : copies_) copy.fill = nullptr;
}

Weight Checkpoint::unpaired(const std::string& name, const Weight& weight, int head_dim) {
    const std::size_t row_bytes = keyhole::stored_bytes(weight.dtype, weight.cols);
    const auto fill = [weight, head_dim, row_bytes](std::byte* to) {
        for (std::int64_t row = 0; row < weight.rows; ++row) {
            const std::int64_t head = row / head_dim, d = row % head_dim, half = head_dim / 2;
            const std::int64_t from = head * head_dim + 2 * (d % half) + d / half;
            std::memcpy(to + to_index(row) * row_bytes,
                        static_cast<const std::byte*>(weight.data) + to_index(from) * row_bytes, row_bytes);
        }
    };
    return {weight.dtype, copy_later(name, to_index(weight.rows) * row_bytes, fill), weight.rows,
            weight.cols};
}

namespace {

/// Returns whether transformers ignores such a tensor of a folder: it computes the values itself, or the
/// embedding stands for them.
bool is_no_weight_of_folder(std::string_view name) {
    constexpr std::array kEnds = {"inv_freq",       "cos_cached",      "sin_cached",   "masked_bias",
                                  ".attn.bias",     ".attention.bias", "position_ids", "causal_mask",
                                  "lm_head.weight", "embed_out.weight"};
    return std::ranges::any_of(kEnds, [&](const char* end) { return name.ends_with(end); });
}

/// Returns the part of a name before its first number: "model.layers." of "model.layers.5.mlp.up.weight".
/// Empty if there is no number.
std::string stack_of(const std::string& name) {
    for (std::size_t at = 0; at < name.size(); at = name.find('.', at) + 1) {
        const std::size_t end = name.find('.', at);
        if (end == std::string::npos) break;
        if (name.find_first_not_of("0123456789", at) == end) return name.substr(0, at);
    }
    return {};
}

}  // namespace

void Checkpoint::refuse_unread_of_folder() {
    std::set<std::string> stacks;
    for (const std::string& name : read_) stacks.insert(stack_of(name));
    std::vector<std::string> others;
    for (const auto& [name, shard] : shard_of_) {
        if (read_.count(name) != 0 || is_no_weight_of_folder(name)) continue;
        const std::string stack = stack_of(name);
        if (!stack.empty() && stacks.count(stack) != 0)
            fail(ErrorCode::unsupported,
                 "cannot load {}: its tensor {} has no place in the model of its config.json; copy both from "
                 "the same model, or choose another",
                 folder_.string(), shown_text(name));
        others.push_back(name);
    }
    if (!others.empty())
        add_note(
            fmt::format("{} of its tensors are not read, such as {}: the model of its config.json has no "
                        "place for them",
                        others.size(), shown_text(others.front())));
}

void Checkpoint::refuse_unread() {
    if (gguf_.empty()) return refuse_unread_of_folder();
    for (const GgufFile& file : gguf_) {
        const bool has_longrope = file.text("general.architecture") == "phi3";
        const auto is_no_weight = [has_longrope](const std::string& name) {
            return name == kGgufFactors ||
                   (has_longrope && (name == kGgufLongFactors || name == kGgufShortFactors));
        };
        for (const std::string& name : file.names())
            if (!is_no_weight(name) && read_.count(name) == 0)
                fail(
                    ErrorCode::unsupported,
                    "cannot load {}: its tensor {} is not supported in models of the architecture {}; choose "
                    "another model",
                    file.path().string(), shown_text(name), shown_text(file.text("general.architecture")));
    }
}

std::size_t Checkpoint::file_bytes() const {
    std::size_t n = 0;
    for (const SafetensorsFile& shard : shards_) n += shard.bytes().size();
    for (const GgufFile& file : gguf_) {
        n += file.bytes().size();
        for (const GgufFile& part : file.parts()) n += part.bytes().size();
    }
    return n;
}

void Checkpoint::check(const std::string& name, const Weight& weight) {
    if (!checked_.insert(name).second) return;
    constexpr std::size_t kWhole = std::size_t{1} << 30;
    const auto n = to_index(weight.rows * weight.cols);
    const auto bad = find_non_finite(weight.dtype, weight.data, n, file_bytes() <= kWhole);
    if (!bad) return;
    warnings_.push_back(fmt::format("tensor {} holds {} in {} of {} weights{}", name,
                                    bad->has_nan ? "NaN" : "infinity", bad->n, bad->n_looked,
                                    bad->n_looked < n ? fmt::format(" looked at ({} in all)", n) : ""));
}

Weight Checkpoint::blocks(const std::string& name, std::int64_t rows, std::int64_t cols,
                          const RowBlocks& which) {
    const Weight whole = weight(name, rows, cols);
    if (which.n > 1) return copied_rows(name, whole, which);
    const std::size_t row_bytes = keyhole::stored_bytes(whole.dtype, whole.cols);
    return {whole.dtype, static_cast<const std::byte*>(whole.data) + to_index(which.first) * row_bytes,
            which.rows, whole.cols};
}

Weight Checkpoint::copied_rows(const std::string& name, const Weight& from, const RowBlocks& which) {
    const std::size_t row_bytes = keyhole::stored_bytes(from.dtype, from.cols);
    const std::size_t block_bytes = to_index(which.rows) * row_bytes;
    const auto fill = [=](std::byte* to) {
        for (std::int64_t i = 0; i < which.n; ++i)
            std::memcpy(to + to_index(i) * block_bytes,
                        static_cast<const std::byte*>(from.data) +
                            to_index(which.first + i * which.stride) * row_bytes,
                        block_bytes);
    };
    return {from.dtype, copy_later(name, to_index(which.n) * block_bytes, fill), which.n * which.rows,
            from.cols};
}

namespace {

/// Writes one row of blocks in the order of GGUF files. Folders have elements 2 i and 2 i + 1 of a block in
/// byte i.
void join_mxfp4(const std::byte* blocks, const std::byte* scales, std::int64_t n_blocks, std::byte* to) {
    constexpr std::int64_t kBytes = 16;
    for (std::int64_t b = 0; b < n_blocks; ++b) {
        BlockMXFP4 block;
        block.d = static_cast<std::uint8_t>(scales[b]);
        const auto code = [&](std::int64_t i) {
            const auto byte = static_cast<unsigned>(blocks[b * kBytes + i / 2]);
            return i % 2 == 0 ? byte & 15u : byte >> 4;
        };
        for (std::int64_t i = 0; i < kBytes; ++i)
            block.q[i] = static_cast<std::uint8_t>(code(i) | code(i + kBytes) << 4);
        std::memcpy(to + to_index(b) * sizeof(block), &block, sizeof(block));
    }
}

}  // namespace

Weight Checkpoint::expert_rows(const std::string& name, int which, int n, std::int64_t cols,
                               const RowBlocks& rows) {
    const std::int64_t n_rows = std::max<std::int64_t>(rows.stride, 1) * rows.n * rows.rows;  // of the tensor
    std::string label;
    fs::path file;
    if (!contains(name + "_blocks") && !contains(name + "_scales")) {
        const StoredTensor stored = found(name, label, file);
        check_shape(stored, {n, cols, n_rows}, label, file);
        if (is_quantised(stored.dtype))
            fail(ErrorCode::unsupported, "cannot use tensor {} in {}: type {} is not supported here", label,
                 file.string(), dtype_name(stored.dtype));
        const std::size_t size = dtype_bytes(stored.dtype);
        const std::byte* data = stored.data + which * cols * n_rows * static_cast<std::int64_t>(size);
        check(fmt::format("{} [{}]", label, which), {stored.dtype, data, cols, n_rows});
        const std::int64_t n_out = rows.n * rows.rows;
        const auto fill = [=](std::byte* to) {
            for (std::int64_t r = 0; r < n_out; ++r)
                for (std::int64_t c = 0; c < cols; ++c) {
                    const std::int64_t row = rows.first + r / rows.rows * rows.stride + r % rows.rows;
                    std::memcpy(to + to_index(r * cols + c) * size, data + to_index(c * n_rows + row) * size,
                                size);
                }
        };
        return {stored.dtype, copy_later(name, to_index(n_out * cols) * size, fill), n_out, cols};
    }
    constexpr std::int64_t kElements = BlockMXFP4::kElements;
    if (cols % kElements != 0)
        fail(ErrorCode::bad_file,
             "cannot use tensor {}_blocks in {}: config.json asks for rows of {} weights, and MXFP4 comes in "
             "blocks of {}; the two files do not belong together",
             name, file_name(), cols, kElements);
    const StoredTensor blocks = found(name + "_blocks", label, file, true);
    check_shape(blocks, {n, n_rows, cols / kElements, 16}, label, file);
    const StoredTensor scales = found(name + "_scales", label, file, true);
    check_shape(scales, {n, n_rows, cols / kElements}, label, file);
    const std::int64_t in_row = cols / kElements, n_out = rows.n * rows.rows;
    const auto fill = [=](std::byte* to) {
        for (std::int64_t r = 0; r < n_out; ++r) {
            const std::int64_t row =
                which * n_rows + rows.first + r / rows.rows * rows.stride + r % rows.rows;
            join_mxfp4(blocks.data + row * in_row * 16, scales.data + row * in_row, in_row,
                       to + to_index(r * in_row) * sizeof(BlockMXFP4));
        }
    };
    return {DType::mxfp4, copy_later(name, to_index(n_out * in_row) * sizeof(BlockMXFP4), fill), n_out, cols};
}

namespace {

/// Computes to [n, rows] = columns [first, first + n) of from [rows, cols], in squares that fit the CPU
/// cache.
template <class T>
void transpose(const T* from, std::int64_t rows, std::int64_t cols, std::int64_t first, std::int64_t n,
               T* to) {
    constexpr std::int64_t kSquare = 64;
    for (std::int64_t r = 0; r < rows; r += kSquare)
        for (std::int64_t c = 0; c < n; c += kSquare)
            for (std::int64_t j = c; j < std::min(n, c + kSquare); ++j)
                for (std::int64_t i = r; i < std::min(rows, r + kSquare); ++i)
                    to[j * rows + i] = from[i * cols + first + j];
}

}  // namespace

Weight Checkpoint::transposed(const std::string& name, std::int64_t rows, std::int64_t cols,
                              std::int64_t first, std::int64_t n) {
    if (const GgufPlace* place = place_of(name); place != nullptr && place->is_transposed)
        return blocks(name, rows, cols, {.first = first, .rows = n});
    const Weight stored = weight(name, cols, rows);
    const auto fill = [=](std::byte* to) {
        if (stored.dtype == DType::f32)
            transpose(static_cast<const float*>(stored.data), cols, rows, first, n,
                      reinterpret_cast<float*>(to));
        else
            transpose(static_cast<const std::uint16_t*>(stored.data), cols, rows, first, n,
                      reinterpret_cast<std::uint16_t*>(to));
    };
    return {stored.dtype, copy_later(name, to_index(n * cols) * dtype_bytes(stored.dtype), fill), n, cols};
}

void Checkpoint::check_unchanged() const {
    for (const SafetensorsFile& shard : shards_) check_mapping(shard.bytes().data());
    for (const GgufFile& file : gguf_) {
        check_mapping(file.bytes().data());
        for (const GgufFile& part : file.parts()) check_mapping(part.bytes().data());
    }
}

namespace {

std::uint64_t digest_of_file(std::uint64_t digest, std::span<const std::byte> bytes) {
    constexpr std::size_t kWhole = std::size_t{64} << 20, kBlock = std::size_t{64} << 10, kBlocks = 512;
    if (bytes.size() <= kWhole) return digest_bytes(digest, bytes);
    // Reading gigabytes from a cold disk only for a name would delay the start.
    digest = digest_word(digest, bytes.size());
    for (std::size_t i = 0; i < kBlocks; ++i) {
        const std::size_t at = (bytes.size() - kBlock) / (kBlocks - 1) * i;
        digest = digest_bytes(digest, bytes.subspan(at, kBlock));
    }
    return digest;
}

}  // namespace

std::uint64_t Checkpoint::digest(std::uint64_t seed) const {
    std::uint64_t digest = seed;
    for (const SafetensorsFile& shard : shards_) digest = digest_of_file(digest, shard.bytes());
    const auto add = [&digest](const GgufFile& file) {
        digest = digest_of_file(digest_bytes(digest, file.header()), file.bytes());
    };
    for (const GgufFile& file : gguf_) {
        add(file);
        for (const GgufFile& part : file.parts()) add(part);
    }
    return digest;
}

}  // namespace keyhole
