// Models without a file: published sizes, the distribution of the weights, and that a backend runs them.
#include "engine/model/seeded_model.h"

#include "engine/backend/backend.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/device/make_backend.h"
#include "engine/policy/lane_spec.h"

#include "tests/reference/tiny_shape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace keyhole::test_seeded_model {
namespace {

ModelShape tiny() {
    return reference::tiny_shape(300);
}

// Parameters as published.
TEST(SeededModel, ShapesHaveTheSizesOfTheirModels) {
    const std::pair<const char*, double> known[] = {{"pythia-160m", 162322944},
                                                    {"tinyllama-1.1b", 1100048384},
                                                    {"mpt-7b", 6649286656},
                                                    {"llama-2-7b", 6738415616},
                                                    {"llama-3-8b", 8030261248}};
    for (const auto& [name, n] : known)
        EXPECT_NEAR(static_cast<double>(seeded_weight_bytes(shape_of(name), DType::f16)) / 2, n, 1e-3 * n)
            << name;
    EXPECT_EQ(shape_names().size(), std::size(known));
}

TEST(SeededModel, AnUnknownShapeListsTheKnownOnes) {
    try {
        shape_of("gpt-5");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_NE(std::string(error.what()).find("llama-2-7b"), std::string::npos) << error.what();
    }
}

TEST(SeededModel, WeightsHaveTheirDeviationAndGainsAreOne) {
    const auto model = make_seeded_model(tiny(), DType::f16);
    const Weight& w = model->weights().layers[1].gate;
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < w.rows * w.cols; ++i) {
        const double v = float_from_fp16(static_cast<const std::uint16_t*>(w.data)[i]);
        sum += v;
        squares += v * v;
    }
    const double n = static_cast<double>(w.rows * w.cols);
    EXPECT_NEAR(std::sqrt(squares / n), 1 / 8.0, 0.005);
    EXPECT_NEAR(sum / n, 0, 0.01);
    EXPECT_EQ(static_cast<const std::uint16_t*>(model->weights().final_norm.data)[63], fp16_from_float(1));
    EXPECT_EQ(model->tokenizer().encode("a!"), (std::vector<int>{'a', '!'}));
    EXPECT_EQ(model->tokenizer().n_vocab(), 300);
}

TEST(SeededModel, TheSeedAloneDecides) {
    const auto a = make_seeded_model(tiny(), DType::f32, 3), b = make_seeded_model(tiny(), DType::f32, 3),
               c = make_seeded_model(tiny(), DType::f32, 4);
    const auto first = [](const auto& model) {
        return *static_cast<const float*>(model->weights().output.data);
    };
    EXPECT_EQ(first(a), first(b));
    EXPECT_NE(first(a), first(c));
}

// Weights drawn on the device have the bits that the host draws, in every type.
TEST(SeededModel, UnmadeWeightsAreDrawnAsTheHostMakesThem) {
    ModelShape shape = tiny();
    shape.biases = shape.norm_biases = true;
    shape.config.n_vocab = 301;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        const auto own = make_seeded_model(shape, dtype, 7),
                   unmade = make_seeded_model(shape, dtype, 7, SeededStorage::unmade);
        std::vector<std::vector<float>> logits;
        for (const auto& model : {own, unmade}) {
            const auto backend = make_cuda_backend(model, cuda::make_host_executor());
            const ResolvedPolicy policy = resolve(parse_lane_spec("full").policy, 3, 4);
            const auto cache = backend->make_cache(policy);
            RowOutput out;
            const LanePrefill lane{cache.get(), {}, &out};
            backend->prefill(std::vector<int>{300, 2, 3}, {&lane, 1}, nullptr, {});
            logits.push_back(out.next_logits);
        }
        EXPECT_EQ(logits[0], logits[1]) << dtype_name(dtype);
        const Weight& gate = unmade->weights().layers[1].gate;
        ASSERT_TRUE(seeded_weight(gate));
        EXPECT_FALSE(seeded_weight(own->weights().layers[1].gate));
        EXPECT_FALSE(seeded_weight(unmade->weights().layers[1].up_bias)) << "vectors are made at once";
        for (std::int64_t i = 0; i < gate.rows * gate.cols * static_cast<std::int64_t>(dtype_bytes(dtype));
             ++i)
            ASSERT_EQ(static_cast<const std::byte*>(gate.data)[i], std::byte{0});
    }
}

TEST(SeededModel, PlacesWithoutValuesGoWithTheirModel) {
    auto model = make_seeded_model(tiny(), DType::f16, 1, SeededStorage::unmade);
    const Weight q = model->weights().layers[0].q;
    EXPECT_TRUE(seeded_weight(q));
    model.reset();
    EXPECT_FALSE(seeded_weight(q));
}

// Neighbouring values, rows and weights differ: no block repeats.
TEST(SeededModel, NoTwoPiecesAreTheSame) {
    const auto model = make_seeded_model(tiny(), DType::f32);
    std::set<std::vector<float>> pieces;
    std::size_t n = 0;
    for (const LayerWeights& l : model->weights().layers)
        for (const Weight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
            for (std::int64_t i = 0; i + 4 <= w->rows * w->cols; i += 4, ++n) {
                const auto* at = static_cast<const float*>(w->data) + i;
                pieces.insert(std::vector<float>(at, at + 4));
            }
    EXPECT_EQ(pieces.size(), n);
}

TEST(SeededModel, DecodesLikeALoadedOne) {
    const auto model = make_seeded_model(tiny(), DType::f16);
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    const ResolvedPolicy policy = resolve(parse_lane_spec("h2o:budget=4").policy, 6, 4);
    const auto cache = backend->make_cache(policy);
    RowOutput out;
    const LanePrefill lane{cache.get(), {}, &out};
    backend->prefill(std::vector<int>{1, 2, 3, 4, 5, 6}, {&lane, 1}, nullptr, {});
    const LaneStep step{cache.get(), 7, 6, {}, &out};
    backend->step({&step, 1});
    double squares = 0;
    for (const float v : out.next_logits) squares += v * v;
    EXPECT_NEAR(std::sqrt(squares / 300), 1, 0.3);  // 64 terms of variance 1/64
}

}  // namespace
}  // namespace keyhole::test_seeded_model
