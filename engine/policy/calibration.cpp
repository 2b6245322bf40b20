#include "engine/policy/calibration.h"

#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/quantised_blocks.h"
#include "engine/model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCalibrationForm =
    "it has the tensors mean [layers, query heads, head_dim] and length [layers, query heads, pairs], and "
    "for expected covariance [layers, query heads, head_dim, head_dim]";

[[noreturn]] void refuse_calibration(const fs::path& path, std::string_view what, std::string_view advice) {
    fail(ErrorCode::bad_file, "cannot read the queries of heads in {}: {}; {}", printable_text(path.string()),
         what, advice);
}

bool begins_as_zip(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    char first[2] = {};
    return file.read(first, sizeof first) && first[0] == 'P' && first[1] == 'K';
}

/// Returns the numbers of a tensor, all finite.
std::vector<float> numbers_of(const SafetensorsFile& file, const std::string& name,
                              const StoredTensor& tensor) {
    std::int64_t n = 1;
    for (const std::int64_t extent : tensor.shape) n *= extent;
    std::vector<float> numbers(to_index(n));
    widen_stored(tensor.dtype, tensor.data, n, numbers.data());
    if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
        refuse_calibration(file.path(), fmt::format("{} holds numbers that are not finite", name),
                           "measure the queries again");
    return numbers;
}

/// The parts of `numbers` [cells, n] as doubles.
std::vector<double> cell_of(const std::vector<float>& numbers, std::size_t cell, std::size_t n) {
    const float* first = numbers.data() + cell * n;
    return {first, first + n};
}

}  // namespace

std::shared_ptr<const Calibration> read_calibration(const fs::path& path) {
    if (begins_as_zip(path))
        refuse_calibration(path, "it is a zip of pickled tensors (.pt), which may run code when it is read",
                           fmt::format("save its numbers as safetensors: {}", kCalibrationForm));
    const SafetensorsFile file(path);
    const auto shape_of = [&](const std::string& name, std::size_t n_extents) {
        if (!file.contains(name))
            refuse_calibration(path, fmt::format("it has no tensor {}", name), kCalibrationForm);
        const StoredTensor tensor = file.tensor(name);
        if (tensor.shape.size() != n_extents)
            refuse_calibration(path, fmt::format("{} has {} extents", name, tensor.shape.size()),
                               kCalibrationForm);
        return tensor;
    };
    const StoredTensor mean = shape_of("mean", 3), length = shape_of("length", 3);
    constexpr std::int64_t kMost = 1 << 16;
    const auto fits = [](std::int64_t extent) { return extent >= 0 && extent <= kMost; };
    const bool is_of_heads = std::all_of(mean.shape.begin(), mean.shape.end(), fits) &&
                             std::all_of(length.shape.begin(), length.shape.end(), fits) &&
                             mean.shape[0] == length.shape[0] && mean.shape[1] == length.shape[1];
    if (!is_of_heads || mean.shape[0] < 1 || mean.shape[1] < 1 || 2 * length.shape[2] > mean.shape[2])
        refuse_calibration(path, "the extents of mean and length do not go together", kCalibrationForm);
    auto out = std::make_shared<Calibration>();
    out->n_layers = static_cast<int>(mean.shape[0]);
    out->n_heads = static_cast<int>(mean.shape[1]);
    out->head_dim = static_cast<int>(mean.shape[2]);
    out->n_pairs = static_cast<int>(length.shape[2]);
    out->has_covariance = file.contains("covariance");
    out->digest = fnv1a({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
    const std::size_t d = to_index(out->head_dim), n_pairs = to_index(out->n_pairs);
    const std::vector<float> means = numbers_of(file, "mean", mean),
                             lengths = numbers_of(file, "length", length);
    std::vector<float> covariances;
    if (out->has_covariance) {
        const StoredTensor covariance = shape_of("covariance", 4);
        if (covariance.shape != std::vector{mean.shape[0], mean.shape[1], mean.shape[2], mean.shape[2]})
            refuse_calibration(path, "the extents of mean and covariance do not go together",
                               kCalibrationForm);
        covariances = numbers_of(file, "covariance", covariance);
    }
    for (std::size_t cell = 0; cell < to_index(out->n_layers) * to_index(out->n_heads); ++cell)
        out->heads.push_back(
            {1, cell_of(means, cell, d),
             out->has_covariance ? cell_of(covariances, cell, d * d) : std::vector<double>(d * d),
             cell_of(lengths, cell, n_pairs)});
    return out;
}

void write_calibration(const fs::path& path, int n_layers, int n_heads, std::span<const QueryMoments> heads) {
    KH_ASSERT(heads.size() == to_index(n_layers) * to_index(n_heads));
    const std::size_t d = heads.front().mean.size();
    std::size_t n_pairs = 0;  // a layer that turns nothing has none
    for (const QueryMoments& head : heads) n_pairs = std::max(n_pairs, head.lengths.size());
    const auto n_bytes = [&](std::size_t n) { return heads.size() * n * sizeof(float); };
    const std::size_t after_mean = n_bytes(d), after_length = after_mean + n_bytes(n_pairs),
                      end = after_length + n_bytes(d * d);
    std::string header =
        fmt::format(R"({{"mean":{{"dtype":"F32","shape":[{0},{1},{2}],"data_offsets":[0,{4}]}},)"
                    R"("length":{{"dtype":"F32","shape":[{0},{1},{3}],"data_offsets":[{4},{5}]}},)"
                    R"("covariance":{{"dtype":"F32","shape":[{0},{1},{2},{2}],"data_offsets":[{5},{6}]}}}})",
                    n_layers, n_heads, d, n_pairs, after_mean, after_length, end);
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    errno = 0;  // an earlier failure is no reason
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header;
    std::vector<float> row;
    const auto write = [&](const std::vector<double>& values, std::size_t n) {
        row.assign(n, 0);
        std::transform(values.begin(), values.end(), row.begin(),
                       [](double x) { return static_cast<float>(x); });
        out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(n * sizeof(float)));
    };
    for (const QueryMoments& head : heads) write(head.mean, d);
    for (const QueryMoments& head : heads) write(head.lengths, n_pairs);
    for (const QueryMoments& head : heads) write(head.covariance, d * d);
    out.close();
    const int error = errno;
    if (!out)
        fail(ErrorCode::io, "cannot write {}: {}; check that the folder is writable and not full",
             printable_text(path.string()), error != 0 ? std::strerror(error) : "not all of it arrived");
}

}  // namespace keyhole
