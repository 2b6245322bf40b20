#include "engine/base/index.h"
#include "engine/model/kv_sharing.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <numeric>

namespace keyhole::test_kv_sharing {
namespace {

using Kind = KvSharing::Kind;

/// K, V and an MLP only, made by hand: the weights that merging reads.
struct HandMade {
    std::vector<std::vector<float>> values;

    Weight weight(std::vector<float> v, std::int64_t rows, std::int64_t cols) {
        values.push_back(std::move(v));
        return {DType::f32, values.back().data(), rows, cols};
    }
};

std::vector<float> floats(const Weight& w) {
    EXPECT_EQ(w.dtype, DType::f32);
    const auto* at = static_cast<const float*>(w.data);
    return {at, at + w.rows * w.cols};
}

/// n_layers layers of 4 heads of 1 channel, d_model 1. K of head h in layer l is 10^l * (h + 1), V its
/// negative, biases a tenth.
std::shared_ptr<const Model> powers(int n_layers) {
    auto made = std::make_shared<HandMade>();
    ModelConfig config;
    config.n_layers = n_layers;
    config.n_heads = config.n_kv_heads = 4;
    config.head_dim = config.d_model = 1;
    config.d_ff = 3;
    ModelWeights weights;
    float scale = 1;
    for (int l = 0; l < n_layers; ++l, scale *= 10) {
        LayerWeights& layer = weights.layers.emplace_back();
        layer.k = made->weight({scale, 2 * scale, 3 * scale, 4 * scale}, 4, 1);
        layer.v = made->weight({-scale, -2 * scale, -3 * scale, -4 * scale}, 4, 1);
        layer.k_bias = made->weight({scale / 10, scale / 5, scale * 3 / 10, scale * 2 / 5}, 4, 1);
        layer.up = made->weight({1, 2, 3}, 3, 1);
        layer.down = made->weight({7, 8, 9}, 1, 3);
    }
    return std::make_shared<const Model>("hand", config, weights, nullptr, "hash", made);
}

TEST(KvSharing, HeadsOfALayerBecomeTheirMean) {
    const auto base = powers(2);
    const auto gqa = shared_model(base, {Kind::gqa, 0, 2});
    EXPECT_EQ(floats(gqa->weights().layers[0].k), (std::vector<float>{1.5f, 3.5f}));
    EXPECT_EQ(floats(gqa->weights().layers[1].k), (std::vector<float>{15, 35}));
    EXPECT_EQ(floats(gqa->weights().layers[1].v), (std::vector<float>{-15, -35}));
    EXPECT_EQ(floats(gqa->weights().layers[1].k_bias), (std::vector<float>{1.5f, 3.5f}));
    EXPECT_EQ(gqa->weights().layers[0].v_bias.data, nullptr);
    const auto mqa = shared_model(base, {Kind::mqa});
    EXPECT_EQ(floats(mqa->weights().layers[1].k), (std::vector<float>{25}));
    EXPECT_EQ(mqa->layout().n_kv_heads(), 2);
    EXPECT_TRUE(mqa->config().merged);
    EXPECT_FALSE(base->config().merged);
}

TEST(KvSharing, LayersBecomeTheirMeanOrTheRunningOneOfTheReleasedCode) {
    const auto base = powers(3);
    const auto uniform = shared_model(base, {Kind::mlkv, 1, 1});
    EXPECT_FLOAT_EQ(floats(uniform->weights().layers[0].k)[0], 2.5f * 111 / 3);
    EXPECT_FALSE(uniform->config().borrows_unrotated);
    const auto released = shared_model(base, {Kind::mlkv, 1, 1, KvMerge::released});
    // ((2.5 + 25) / 2 + 250) / 2: weights of a quarter, a quarter and a half.
    EXPECT_FLOAT_EQ(floats(released->weights().layers[0].k)[0], 131.875f);
    EXPECT_FLOAT_EQ(floats(released->weights().layers[0].v)[0], -131.875f);
    EXPECT_FLOAT_EQ(floats(released->weights().layers[0].k_bias)[0], 13.1875f);
    EXPECT_TRUE(released->config().borrows_unrotated);
    for (int l : {1, 2}) EXPECT_EQ(released->weights().layers[to_index(l)].k.data, nullptr);
}

TEST(KvSharing, OwnersGoByTheReleasedCodeWhereLayersDoNotDivide) {
    EXPECT_EQ(kv_owner_layers(7, 3), (std::vector<int>{0, 2, 4}));
    EXPECT_EQ(kv_owner_layers(12, 4), (std::vector<int>{0, 3, 6, 9}));
    EXPECT_EQ(kv_owner_layers(5, 5), (std::vector<int>{0, 1, 2, 3, 4}));
    const KvLayout layout = KvLayout::shared(7, 4, 3, 2);
    EXPECT_EQ(layout.n_kv_heads(), 6);
    const int owner[] = {0, 0, 2, 2, 4, 4, 4};
    for (int l = 0; l < 7; ++l) {
        EXPECT_EQ(layout.owner_of_layer(l), owner[l]) << l;
        EXPECT_EQ(layout.owns(l), owner[l] == l) << l;
        for (int h = 0; h < 4; ++h) {
            const KvHead& kv = layout.kv_head(layout.kv_head_from_head(l, h));
            EXPECT_EQ(kv.owner_layer, owner[l]);
            EXPECT_EQ(kv.index, h / 2);
        }
    }
    EXPECT_EQ(layout.kv_head(5).readers,
              (std::vector<HeadRef>{{4, 2}, {4, 3}, {5, 2}, {5, 3}, {6, 2}, {6, 3}}));
    EXPECT_EQ(layout.last_reader(0), 1);
    EXPECT_THROW(kv_owner_layers(3, 4), Error);
    EXPECT_THROW(kv_owner_layers(3, 0), Error);
}

TEST(KvSharing, TheModelsOwnSharingIsTheModelItself) {
    const auto base = powers(4);
    EXPECT_EQ(shared_model(base, {}), base);
    // Callers share one merged model while somebody holds it; afterwards it is freed.
    auto held = shared_model(base, {Kind::mqa});
    EXPECT_EQ(shared_model(base, {Kind::mqa}), held);
    EXPECT_NE(shared_model(base, {Kind::mqa, 0, 0, KvMerge::released}), held);
    const std::weak_ptr<const Model> seen = held;
    held.reset();
    EXPECT_TRUE(seen.expired());
    EXPECT_EQ(shared_model(base, {Kind::mha}), base);
    EXPECT_EQ(shared_model(base, {Kind::mlkv, 4, 4}), base);
    const auto half = shared_model(base, {Kind::mlkv, 2, 2});
    EXPECT_EQ(kv_name(half->config()), "mlkv:m=2,g=2");
    EXPECT_EQ(kv_name(base->config()), "mha");
    EXPECT_NE(half->hash(), base->hash());
    // Weights that are not merged are not copied.
    EXPECT_EQ(half->weights().layers[1].up.data, base->weights().layers[1].up.data);
}

TEST(KvSharing, MergingIdenticalHeadsChangesNothing) {
    auto made = std::make_shared<HandMade>();
    ModelConfig config;
    config.n_layers = 3;
    config.n_heads = config.n_kv_heads = 3;
    config.head_dim = 2;
    config.d_model = 1;
    ModelWeights weights;
    for (int l = 0; l < 3; ++l) {
        LayerWeights& layer = weights.layers.emplace_back();
        layer.k = made->weight({0.1f, 0.7f, 0.1f, 0.7f, 0.1f, 0.7f}, 6, 1);
        layer.v = made->weight({0.3f, -9, 0.3f, -9, 0.3f, -9}, 6, 1);
    }
    const auto base = std::make_shared<const Model>("hand", config, weights, nullptr, "hash", made);
    for (const KvMerge how : {KvMerge::uniform, KvMerge::released}) {
        const auto one = shared_model(base, {Kind::mlkv, 1, 1, how});
        const std::vector<float> k = floats(one->weights().layers[0].k),
                                 v = floats(one->weights().layers[0].v);
        EXPECT_NEAR(k[0], 0.1, 1e-7);
        EXPECT_NEAR(k[1], 0.7, 1e-7);
        EXPECT_NEAR(v[1], -9, 1e-6);
    }
}

/// Each head becomes equal copies, which are no damage.
TEST(KvSharing, HeadsSplitIntoCopies) {
    const auto gqa = shared_model(powers(2), {Kind::gqa, 0, 2});
    const auto mha = shared_model(gqa, {Kind::mha});
    EXPECT_EQ(floats(mha->weights().layers[1].k), (std::vector<float>{15, 15, 35, 35}));
    EXPECT_EQ(floats(mha->weights().layers[0].v), (std::vector<float>{-1.5f, -1.5f, -3.5f, -3.5f}));
    EXPECT_EQ(floats(mha->weights().layers[1].k_bias), (std::vector<float>{1.5f, 1.5f, 3.5f, 3.5f}));
    EXPECT_EQ(mha->layout().n_kv_heads(), 8);
    EXPECT_EQ(kv_name(mha->config()), "mha");
    EXPECT_EQ(mha->config().merged, gqa->config().merged);
    const auto mqa = shared_model(powers(2), {Kind::mqa});
    EXPECT_EQ(floats(shared_model(mqa, {Kind::gqa, 0, 2, KvMerge::uniform, true})->weights().layers[1].k),
              (std::vector<float>{25, 25}));
    // Not into a number that the query heads do not divide into, and not across layers.
    EXPECT_NE(check_sharing({Kind::gqa, 0, 3}, mqa->config()), "");
    EXPECT_NE(check_sharing({Kind::mha}, shared_model(powers(4), {Kind::mlkv, 2, 2})->config()), "");
}

TEST(KvSharing, WhatCannotMergeIsRefused) {
    const auto base = powers(4);
    EXPECT_NE(check_sharing({Kind::gqa, 0, 3}, base->config()), "");
    EXPECT_NE(check_sharing({Kind::gqa, 0, 8}, base->config()), "");
    EXPECT_NE(check_sharing({Kind::gqa, 0, 0}, base->config()), "");
    EXPECT_NE(check_sharing({Kind::mlkv, 5, 1}, base->config()), "");
    EXPECT_NE(check_sharing({Kind::mlkv, 0, 1}, base->config()), "");
    EXPECT_EQ(check_sharing({Kind::mlkv, 3, 4}, base->config()), "");
    // Owners 0, 1, 2 of three include layer 1; two owners would be 0 and 2: layer 1 has no heads to give.
    const auto two = shared_model(base, {Kind::mlkv, 2, 4});
    EXPECT_NE(check_sharing({Kind::mlkv, 3, 4}, two->config()), "");
    EXPECT_EQ(check_sharing({Kind::mlkv, 1, 2}, two->config()), "");
}

TEST(KvSharing, CompensationReproducesTableTwoOfTheMlkvPaper) {
    ModelConfig pythia;
    pythia.n_layers = pythia.n_heads = pythia.n_kv_heads = 12;
    pythia.head_dim = 64;
    pythia.d_model = 768;
    const auto more = [&](int m, int g) {
        return compensating_neurons(pythia, {12, 12}, {m, g}, true, false);
    };
    EXPECT_EQ(more(12, 4), 512);
    EXPECT_EQ(more(4, 12), 512);
    EXPECT_EQ(more(12, 1), 705);
    EXPECT_EQ(more(4, 3), 705);
    EXPECT_EQ(more(6, 1), 737);
    EXPECT_EQ(more(4, 1), 747);
    EXPECT_EQ(more(2, 1), 758);
    EXPECT_EQ(more(1, 1), 763);
    EXPECT_EQ(more(12, 12), 0);
}

TEST(KvSharing, NewNeuronsAreCopiesOfTheFirst) {
    // 8 KV heads become 2: lost 6 * (2 + 2) = 24, 12 per layer, 12 over d_model 1, 6 neurons of two matrices
    // each.
    const auto wide = shared_model(powers(2), {Kind::mqa, 0, 0, KvMerge::uniform, true});
    EXPECT_EQ(wide->config().d_ff, 9);
    EXPECT_EQ(floats(wide->weights().layers[1].up), (std::vector<float>{1, 2, 3, 1, 2, 3, 1, 2, 3}));
    EXPECT_EQ(floats(wide->weights().layers[1].down), (std::vector<float>{7, 8, 9, 7, 8, 9, 7, 8, 9}));
}

TEST(KvSharing, MergedWeightsKeepTheirType) {
    for (const reference::StoredAs stored :
         {reference::StoredAs::f32, reference::StoredAs::f16, reference::StoredAs::bf16}) {
        reference::TinyShape shape;
        shape.dtype = stored;
        const reference::TinyModel tiny(shape);
        const auto base = load_model(tiny.folder());
        const auto mqa = shared_model(base, {Kind::mqa});
        const Weight& k = mqa->weights().layers[1].k;
        const Weight& was = base->weights().layers[1].k;
        EXPECT_EQ(k.dtype, was.dtype);
        EXPECT_EQ(k.rows, shape.head_dim);
        if (stored != reference::StoredAs::bf16) continue;
        const auto at = [](const Weight& w, std::int64_t i) {
            return float_from_bf16(static_cast<const std::uint16_t*>(w.data)[i]);
        };
        for (std::int64_t i = 0; i < k.rows * k.cols; ++i)
            EXPECT_EQ(at(k, i),
                      float_from_bf16(bf16_from_float((at(was, i) + at(was, i + k.rows * k.cols)) / 2)));
    }
}

TEST(KvSharing, BytesOfATokenGoByTheEquation) {
    ModelConfig pythia;
    pythia.n_layers = pythia.n_heads = pythia.n_kv_heads = 12;
    pythia.head_dim = 64;
    EXPECT_EQ(kv_bytes_per_token(pythia, KvType::f32), 2 * 12 * 12 * 64 * 4);
    pythia.n_kv_layers = 4;
    pythia.n_kv_heads = 3;
    EXPECT_EQ(kv_bytes_per_token(pythia, KvType::f32), 2 * 4 * 3 * 64 * 4);
}

TEST(KvSharing, AFolderThatSharesBetweenLayersLoads) {
    reference::TinyShape shape;
    shape.n_layers = 5;
    shape.n_kv_layers = 2;
    shape.n_kv_heads = 1;
    const reference::TinyModel tiny(shape);
    const auto model = load_model(tiny.folder());
    EXPECT_EQ(kv_name(model->config()), "mlkv:m=2,g=1");
    EXPECT_FALSE(model->config().merged);
    EXPECT_EQ(model->layout().n_kv_heads(), 2);
    for (int l = 0; l < 5; ++l)
        EXPECT_EQ(model->weights().layers[to_index(l)].k.data != nullptr, l == 0 || l == 2) << l;
}

}  // namespace
}  // namespace keyhole::test_kv_sharing
