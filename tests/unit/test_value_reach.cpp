// How far values reach into the output, with weights as files have them: a head's columns of a quantised W_o
// are widened alone where they begin and end with blocks.
#include "engine/backend/common/integer_products.h"
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/value_reach.h"
#include "engine/backend/cpu/cache.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/params.h"
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

/// Returns a value of each KV head of a layer.
std::vector<float> random_values(const Model& model, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(to_index(model.config().n_kv_heads * model.config().head_dim));
    for (float& x : values) x = normal(random);
    return values;
}

/// Compares what a laid W_o gives in two steps, a group at a time, by every path. Returns whether that goes.
bool expect_same_from_laid(const Model& model, int layer, const std::vector<float>& values) {
    const Weight& o = model.weights().layers[to_index(layer)].o;
    const KvLayout& layout = model.layout();
    const int d = model.config().head_dim;
    if (!can_measure_laid(layout, layer, d) || !can_be_laid(o)) return false;
    OrderedBytes bytes(to_index(laid_bytes(o)));
    const LaidMatrix w{o.dtype, bytes.data(), o.rows, o.cols};
    lay_groups(o, 0, w.n_groups(), bytes.data());
    for (const IntegerPath path : integer_paths()) {
        std::vector<float> lengths(to_index(layout.n_heads() * w.n_groups() * kLaidRows), NAN);
        for (std::int64_t group = w.n_groups() - 1; group >= 0; --group)
            measure_outputs(path, w, group, group + 1, layout, layer, d, values.data(), lengths.data());
        for (int g = layout.first_of_layer(layer); g < layout.first_of_layer(layer + 1); ++g) {
            const float* value = values.data() + layout.kv_head(g).index * d;
            EXPECT_EQ(reach_of_lengths(w, layout.kv_head(g), lengths.data()),
                      reach_in_order(model, layout.kv_head(g), value))
                << integer_path_name(path) << ' ' << g;
        }
    }
    return true;
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

/// A model whose W_o are quantised: random blocks of q8_0.
struct QuantisedOutputs {
    std::shared_ptr<const Model> model;
    std::vector<std::vector<std::byte>> blocks;
    explicit QuantisedOutputs(const TinyModel& tiny) : model(load_model(tiny.folder())) {
        std::mt19937 random(9);
        for (const auto& layer : model->weights().layers) {
            EXPECT_EQ(layer.o.cols % 32, 0);
            std::vector<std::byte>& bytes =
                blocks.emplace_back(stored_bytes(DType::q8_0, layer.o.rows * layer.o.cols));
            for (std::size_t i = 0; i < bytes.size(); ++i)
                bytes[i] = i % 34 == 0   ? std::byte{0}
                           : i % 34 == 1 ? std::byte{0x20}
                                         : std::byte(random() & 0xff);
            const_cast<Weight&>(layer.o).dtype = DType::q8_0;
            const_cast<Weight&>(layer.o).data = bytes.data();
        }
    }
};

TinyShape with_head_dim(int head_dim) {
    TinyShape shape;
    shape.head_dim = head_dim;
    return shape;
}

// Blocks of 32 channels: heads of 32 begin with a block, heads of 16 share one.
TEST(ValueReach, TakesAHeadsBlocks) {
    for (const int head_dim : {32, 16}) {
        const TinyModel tiny(with_head_dim(head_dim));
        const QuantisedOutputs quantised(tiny);
        const Model& model = *quantised.model;
        SCOPED_TRACE(head_dim);
        expect_reach(model);
        EXPECT_EQ(expect_same_from_laid(model, 1, random_values(model, 4)), head_dim == 32);
    }
}

// Of several lanes, each with a type of its own; of one that keeps none nothing is measured.
TEST(ValueReach, IsThatOfTheStoredValuesInSteps) {
    for (const int head_dim : {32, 16}) {
        const TinyModel tiny(with_head_dim(head_dim));
        const QuantisedOutputs quantised(tiny);
        const Model& model = *quantised.model;
        cpu::CpuBackend backend(quantised.model, 2, Precision::weights);
        const char* const specs[] = {"key:budget=6,score=(s+p*wvnorm),kv_dtype=bf16", "full",
                                     "key:budget=5,score=(s+p*wvnorm),kv_dtype=f32"};
        std::vector<std::unique_ptr<KvCache>> caches;
        for (const char* spec : specs)
            caches.push_back(backend.make_cache(resolve(parse_lane_spec(spec).policy, 4, 16), nullptr));
        std::vector<RowOutput> out(caches.size());
        for (int row = 0; row < 12; ++row) {
            std::vector<LaneStep> steps;
            for (std::size_t i = 0; i < caches.size(); ++i)
                steps.push_back({caches[i].get(), 'a' + row * 5 % 26, row, {}, &out[i]});
            backend.step(steps);
        }
        for (const std::size_t lane : {0, 2})
            for (int g = 0; g < model.layout().n_kv_heads(); ++g) {
                const auto& cache = static_cast<const cpu::CpuKvCache&>(*caches[lane]);
                const float* kept = cache.lengths(Quantity::wvnorm, g);
                ASSERT_NE(kept, nullptr);
                ASSERT_GE(cache.count(g), 5);
                std::vector<float> value(to_index(head_dim));
                for (int slot = 0; slot < cache.count(g); ++slot) {
                    widen_kv(cache.values(g).from_row(slot), 1, value.data());
                    EXPECT_EQ(kept[slot], reach_in_order(model, model.layout().kv_head(g), value.data()))
                        << head_dim << " lane " << lane << " KV head " << g << " slot " << slot;
                }
            }
    }
}

}  // namespace
}  // namespace reference::test_value_reach
