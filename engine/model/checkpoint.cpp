#include "engine/model/checkpoint.h"

#include "engine/base/error.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <set>

namespace keyhole {

namespace {

std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder) {
    const std::filesystem::path single = folder / "model.safetensors",
                                index = folder / "model.safetensors.index.json";
    std::error_code ignored;
    if (std::filesystem::exists(single, ignored)) return {single};
    if (!std::filesystem::exists(index, ignored))
        fail(ErrorCode::bad_file,
             "no weights in {}: model.safetensors or model.safetensors.index.json is needed; download the "
             "model with its safetensors files",
             folder.string());
    std::set<std::string> names;
    try {
        const auto json = nlohmann::json::parse(read_text_file(index));
        for (const auto& entry : json.at("weight_map").items())
            names.insert(entry.value().get<std::string>());
    } catch (const nlohmann::json::exception&) {
        fail(ErrorCode::bad_file,
             "{} is not an index of shards (weight_map: tensor -> file); download the file again",
             index.string());
    }
    std::vector<std::filesystem::path> files;
    for (const std::string& name : names) {
        files.push_back(folder / name);
        if (!std::filesystem::exists(files.back(), ignored))
            fail(ErrorCode::bad_file, "shard {} is missing in {}; download the rest of the model", name,
                 folder.string());
    }
    return files;
}

struct Fnv {
    std::uint64_t state = 0xcbf29ce484222325u;
    void add(std::uint64_t word) { state = (state ^ word) * 0x100000001b3u; }
    void add(std::string_view text) {
        for (char c : text) add(static_cast<unsigned char>(c));
    }
};

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder) {
    for (const std::filesystem::path& file : weight_files(folder)) files_.emplace_back(file);
}

const SafetensorsFile* Checkpoint::file_of(const std::string& name) const {
    for (const SafetensorsFile& file : files_)
        if (file.contains(name)) return &file;
    return nullptr;
}

bool Checkpoint::contains(const std::string& name) const {
    return file_of(name) != nullptr;
}

Weight Checkpoint::weight(const std::string& name, std::int64_t rows, std::int64_t cols) const {
    const SafetensorsFile* file = file_of(name);
    const std::string where = files_.front().path().parent_path().string();
    if (file == nullptr)
        fail(ErrorCode::bad_file,
             "tensor {} is missing in {}; the checkpoint is incomplete or of another family", name, where);
    const StoredTensor tensor = file->tensor(name);
    const std::vector<std::int64_t> expected = cols == 0 ? std::vector{rows} : std::vector{rows, cols};
    if (tensor.shape != expected)
        fail(ErrorCode::bad_file,
             "tensor {} in {} has shape [{}], config.json asks for [{}]; config and weights do not belong "
             "together",
             name, file->path().string(), fmt::join(tensor.shape, ", "), fmt::join(expected, ", "));
    return {tensor.dtype, tensor.data, rows, cols == 0 ? 1 : cols};
}

std::uint64_t Checkpoint::digest(std::string_view also) const {
    constexpr std::uint64_t kDenseWords = std::uint64_t{1} << 17;  // 1 MiB
    Fnv fnv;
    fnv.add(also);
    for (const SafetensorsFile& file : files_) {
        for (const std::string& name : file.names()) {
            const StoredTensor tensor = file.tensor(name);
            fnv.add(name);
            fnv.add(dtype_name(tensor.dtype));
            std::uint64_t n_bytes = dtype_bytes(tensor.dtype);
            for (std::int64_t extent : tensor.shape) {
                fnv.add(static_cast<std::uint64_t>(extent));
                n_bytes *= static_cast<std::uint64_t>(extent);
            }
            const std::uint64_t n_words = n_bytes / 8,
                                stride = std::max<std::uint64_t>(1, n_words / kDenseWords);
            for (std::uint64_t i = 0; i < n_words; i += stride) {
                std::uint64_t word = 0;
                std::memcpy(&word, tensor.data + i * 8, 8);
                fnv.add(word);
            }
        }
    }
    return fnv.state;
}

}  // namespace keyhole
