// Each tensor of each model in tests/fixtures/families and tests/fixtures/gguf is taken away once, and once
// has another shape: one line names file and tensor, unless the model is the same without it.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "tests/reference/gguf_bytes.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/transformers_run.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace keyhole::test_family_tensors {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kFamilies = reference::source_folder() / "tests/fixtures/families";

/// The header and the data of a safetensors file.
struct Tensors {
    Json header;
    std::string data;

    explicit Tensors(const fs::path& path) {
        const std::string all = read_text_file(path);
        std::uint64_t length = 0;
        std::memcpy(&length, all.data(), sizeof length);
        header = Json::parse(all.substr(sizeof length, to_index(length)));
        data = all.substr(sizeof length + to_index(length));
    }
    void write(const fs::path& path, const Json& changed) const {
        std::string text = changed.dump();
        text.resize((text.size() + 7) / 8 * 8, ' ');
        const std::uint64_t length = text.size();
        std::string all(sizeof length, '\0');
        std::memcpy(all.data(), &length, sizeof length);
        write_text_file(path, all + text + data);
    }
};

/// Returns another shape of as many numbers.
Json other_shape(const Json& shape) {
    std::int64_t n = 1;
    for (const auto& extent : shape) n *= extent.get<std::int64_t>();
    Json other = Json::array();
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) other.push_back(*extent);
    if (other != shape) return other;
    return shape.size() == 1 ? Json::array({1, n}) : Json::array({n});
}

class FamilyTensors : public ::testing::TestWithParam<std::string> {
  protected:
    /// Expects a refusal that names the file and the tensor, or the same model, or a warning.
    void expect_named(const std::string& tensor, const char* about) {
        SCOPED_TRACE(tensor + about);
        try {
            const auto model = load_model(folder_.path());
            ++n_accepted_;
            if (model->warnings().empty()) {
                EXPECT_LT(reference::error_to_transformers(folder_.path(), 0).share, 1.0);
            }
        } catch (const Error& error) {
            ++n_refused_;
            const std::string said = error.what();
            EXPECT_EQ(error.code(), ErrorCode::bad_file) << said;
            EXPECT_EQ(said.find('\n'), std::string::npos) << said;
            if (!tells_forms_apart(tensor)) {
                EXPECT_NE(said.find(tensor), std::string::npos) << said;
            }
            EXPECT_NE(said.find(folder_.path().string()), std::string::npos) << said;
        }
    }

    /// Without these the names of a file are taken for those of another form, which then lacks others.
    static bool tells_forms_apart(const std::string& tensor) {
        return (GetParam() == "gpt2" && tensor == "wpe.weight") ||
               (GetParam() == "gpt_neox_serial" && tensor == "embed_out.weight") ||
               (GetParam().starts_with("mlkv") && tensor.ends_with("layers.0.attention.query.weight"));
    }

    const reference::TempFolder folder_{"family-tensors"};
    int n_refused_ = 0, n_accepted_ = 0;
};

TEST_P(FamilyTensors, WhatIsMissingOrHasAnotherShapeIsNamed) {
    fs::copy(kFamilies / GetParam(), folder_.path(), fs::copy_options::recursive);
    const fs::path path = folder_.path() / "model.safetensors";
    const Tensors whole(path);
    for (const auto& [name, about] : whole.header.items()) {
        if (name == "__metadata__") continue;
        Json without = whole.header;
        without.erase(name);
        without["something.else"] = about;
        whole.write(path, without);
        expect_named(name, " is missing");
        Json reshaped = whole.header;
        reshaped[name]["shape"] = other_shape(about["shape"]);
        whole.write(path, reshaped);
        expect_named(name, " has another shape");
    }
    EXPECT_GT(n_refused_, 3 * n_accepted_);
}

/// Expects a one-line refusal of a GGUF file that holds these bytes, with the file and one of the names.
void expect_gguf_named(const fs::path& file, const std::string& bytes,
                       std::initializer_list<std::string> names) {
    write_text_file(file, bytes);
    try {
        load_model(file);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_EQ(said.find('\n'), std::string::npos) << said;
        EXPECT_NE(said.find(file.string()), std::string::npos) << said;
        EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
            return said.find(name) != std::string::npos;
        })) << said;
    }
}

class GgufTensors : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufTensors, WhatIsMissingOrHasAnotherShapeIsNamed) {
    const fs::path path = reference::source_folder() / "tests/fixtures/gguf" / GetParam();
    const reference::TempFolder folder("gguf-tensors");
    const fs::path file = folder.path() / "m.gguf";
    const std::string whole = read_text_file(path);
    const GgufFile opened(path);
    int n_shapes = 0;
    for (const std::string& name : opened.names()) {
        SCOPED_TRACE(name);
        const std::size_t at = whole.find(reference::GgufBytes::raw_text(name)) + sizeof(std::uint64_t);
        std::string renamed = name, bytes = whole;
        renamed[name.rfind('.') - 1] = '#';
        // One bias of several is missing where the others are: the first of those may be named.
        const std::string other = name.ends_with(".bias") ? ".bias" : name;
        expect_gguf_named(file, bytes.replace(at, name.size(), renamed), {name, renamed, other});
        const std::vector<std::int64_t> shape = opened.tensor(name).shape;
        if (shape.size() != 2 || shape[0] == shape[1] || is_quantised(opened.tensor(name).dtype)) continue;
        ++n_shapes;
        bytes = whole;
        const auto extent = [](std::int64_t n) {
            return reference::GgufBytes::raw(static_cast<std::uint64_t>(n));
        };
        bytes.replace(at + name.size() + sizeof(std::uint32_t), 2 * sizeof(std::uint64_t),
                      extent(shape[0]) + extent(shape[1]));
        expect_gguf_named(file, bytes, {name});
    }
    EXPECT_GT(n_shapes, 2);
}

std::vector<std::string> gguf_models() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(reference::source_folder() / "tests/fixtures/gguf")) {
        const std::string name = entry.path().filename();
        const bool is_model = entry.path().extension() == ".gguf" && name != "types.gguf" &&
                              name != "keys.gguf" && name.find("-of-") == name.npos;
        if (is_model) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

INSTANTIATE_TEST_SUITE_P(All, GgufTensors, ::testing::ValuesIn(gguf_models()),
                         [](const ::testing::TestParamInfo<std::string>& test) {
                             return test.param.substr(0, test.param.find('.'));
                         });

std::vector<std::string> models_in_one_file() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kFamilies))
        if (fs::exists(entry.path() / "model.safetensors")) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTensors, ::testing::ValuesIn(models_in_one_file()),
                         [](const ::testing::TestParamInfo<std::string>& test) { return test.param; });

}  // namespace
}  // namespace keyhole::test_family_tensors
