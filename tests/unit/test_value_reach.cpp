// How far values reach into the output, with weights as files have them: a head's columns of a quantised W_o
// are widened alone where they begin and end with blocks.
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/value_reach.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <random>
#include <vector>

namespace reference::test_value_reach {
namespace {

using namespace keyhole;

/// By whole rows, in double.
double reach_of(const Model& model, const KvHead& head, const float* value) {
    const int d = model.config().head_dim;
    double sum = 0;
    for (const HeadRef& reader : head.readers) {
        const Weight& w = model.weights().layers[to_index(reader.layer)].o;
        std::vector<float> rows(to_index(w.rows * w.cols));
        widen_rows(w, 0, w.rows, rows.data());
        for (std::int64_t r = 0; r < w.rows; ++r) {
            double dot = 0;
            for (int c = 0; c < d; ++c)
                dot += double{rows[to_index(r * w.cols + reader.head * d + c)]} * double{value[c]};
            sum += std::abs(dot) / static_cast<double>(head.readers.size());
        }
    }
    return sum;
}

/// The same in the order of CUDA's kernel (OutputReach): channel after channel, reader after reader.
float reach_in_order(const Model& model, const KvHead& head, const float* value) {
    const int d = model.config().head_dim;
    float sum = 0;
    for (const HeadRef& reader : head.readers) {
        const Weight& w = model.weights().layers[to_index(reader.layer)].o;
        std::vector<float> row(to_index(w.cols));
        for (std::int64_t r = 0; r < w.rows; ++r) {
            widen_rows(w, r, r + 1, row.data());
            sum = add(sum, std::fabs(dot_channels(
                               d, [&](int c) { return row[to_index(reader.head * d + c)]; },
                               [&](int c) { return value[c]; })));
        }
    }
    return sum / static_cast<float>(head.readers.size());
}

/// Compares the first and the last KV head's.
void expect_reach(const Model& model) {
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    const int n = 19, d = model.config().head_dim;
    for (const int g : {0, model.layout().n_kv_heads() - 1}) {
        std::vector<float> values(to_index(n * d)), reach(to_index(n));
        for (float& x : values) x = normal(random);
        reach_of_values(model, model.layout().kv_head(g), values.data(), reach);
        for (int i = 0; i < n; ++i) {
            const double expected = reach_of(model, model.layout().kv_head(g), &values[to_index(i * d)]);
            EXPECT_GT(expected, 0);
            EXPECT_NEAR(reach[to_index(i)], expected, 1e-5 * expected) << g << ' ' << i;
            EXPECT_EQ(reach[to_index(i)],
                      reach_in_order(model, model.layout().kv_head(g), &values[to_index(i * d)]))
                << g << ' ' << i;
        }
    }
}

TEST(ValueReach, TakesAHeadsColumns) {
    int n_models = 0;
    for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "tests/fixtures/gguf")) {
        const std::string name = entry.path().filename().string();
        if (entry.path().extension() != ".gguf" || name.find("-of-") != std::string::npos) continue;
        std::shared_ptr<const Model> model;
        try {
            model = load_model(entry.path());
        } catch (const std::exception&) {
            continue;  // keys alone, or a part
        }
        SCOPED_TRACE(name);
        expect_reach(*model);
        ++n_models;
    }
    EXPECT_GT(n_models, 20);
}

// Blocks of 32 channels: heads of 32 begin with a block, heads of 16 share one.
TEST(ValueReach, TakesAHeadsBlocks) {
    for (const int head_dim : {32, 16}) {
        TinyShape shape;
        shape.head_dim = head_dim;
        const TinyModel tiny(shape);
        const std::shared_ptr<const Model> model = load_model(tiny.folder());
        std::mt19937 random(9);
        std::vector<std::vector<std::byte>> blocks;
        for (const auto& layer : model->weights().layers) {
            ASSERT_EQ(layer.o.cols % 32, 0);
            std::vector<std::byte>& bytes =
                blocks.emplace_back(stored_bytes(DType::q8_0, layer.o.rows * layer.o.cols));
            for (std::size_t i = 0; i < bytes.size(); ++i)
                bytes[i] = i % 34 == 0   ? std::byte{0}
                           : i % 34 == 1 ? std::byte{0x20}
                                         : std::byte(random() & 0xff);
            const_cast<Weight&>(layer.o).dtype = DType::q8_0;
            const_cast<Weight&>(layer.o).data = bytes.data();
        }
        SCOPED_TRACE(head_dim);
        expect_reach(*model);
    }
}

}  // namespace
}  // namespace reference::test_value_reach
