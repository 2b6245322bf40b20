// Lanes that share KV heads otherwise than their model: the CPU engine against the double-precision
// reference, and properties that must not change.
#include "engine/device/make_backend.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/any_model.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/sharing_cases.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>

namespace reference::test_kv_variants {
namespace {

class KvVariants : public ::testing::TestWithParam<Sharing> {};

TEST_P(KvVariants, EveryRowAgrees) {
    expect_sharing_agrees(GetParam(), {});
}

INSTANTIATE_TEST_SUITE_P(Sharings, KvVariants, ::testing::ValuesIn(kSharings));

TEST(KvVariantsOf, AModelThatSharesBetweenLayersAgrees) {
    expect_own_sharing_agrees({});
}

/// Biases, norms of heads, ALiBi and a window go through the same code.
TEST(KvVariantsOf, OtherFamiliesAgree) {
    for (const bool alibi : {false, true}) {
        AnyShape shape = any_shape();
        shape.config.n_layers = 4;
        shape.config.n_kv_heads = 4;
        shape.config.norm = keyhole::NormKind::layer;
        shape.config.parallel = true;
        shape.biases = true;
        shape.qk_norm = !alibi;
        if (alibi) shape.config.positions = keyhole::PositionKind::alibi;
        const auto model = any_model(shape);
        const Weights own = weights_of(*model);
        const std::vector<int> tokens = random_tokens(24, 7);
        const std::span<const int> all(tokens);
        for (const auto& [m, g] : {std::pair(4, 1), {2, 2}}) {
            if (shape.qk_norm && m < 4) continue;  // the reference does not merge k_norm
            const Weights shared = shared_weights(own, m, g);
            std::vector<Case> cases;
            for (const char* preset : {"full", "h2o", "tova"}) {
                Case c = preset_case(preset, 6, 8);
                c.spec += fmt::format("{}kv=(mlkv:m={},g={})",
                                      c.spec.find(':') == std::string::npos ? ":" : ",", m, g);
                c.weights = &shared;
                cases.push_back(c);
            }
            expect_agreement(compare_with_reference(model, own, cases, all.first(16), all.subspan(16)));
        }
    }
}

TEST(KvVariantsOf, ALaneDoesNotDependOnTheVariantsBesideIt) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    expect_lanes_stand_alone(
        {"full", "h2o:budget=6,kv=(mlkv:m=2,g=1)", "tova:budget=6,kv=mqa,compensate=on", "h2o:budget=6",
         "a2sf:budget=6,kv=(mlkv:m=2,g=1)"},
        [&](std::span<const std::string> specs, std::span<const int> prompt, std::span<const int> decode) {
            return run_engine(model, specs, prompt, decode, specs.size() > 1 ? 2 : 1);
        });
}

TEST(KvVariantsOf, TheModelsOwnSharingGivesTheSameBits) {
    TinyShape shape;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = random_tokens(30, 9);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"h2o:budget=6", "h2o:budget=6,kv=mha", "h2o:budget=6,kv=gqa:4",
                                            "h2o:budget=6,kv=(mlkv:m=2,g=4)"};
    const LaneRows rows = run_engine(model, specs, all.first(20), all.subspan(20));
    for (std::size_t lane = 1; lane < specs.size(); ++lane)
        EXPECT_EQ(first_difference(rows, 0, rows, lane), "") << specs[lane];
}

TEST(KvVariantsOf, StoredBytesGoByTheEquation) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    std::string notice;
    const auto backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    const std::vector<int> tokens = random_tokens(33, 10);
    for (const auto& [kv, n_kv_heads] :
         {std::pair("mha", 16), {"gqa:2", 8}, {"mqa", 4}, {"mlkv:m=2,g=2", 4}, {"mlkv:m=1,g=1", 1}}) {
        const auto variant = keyhole::shared_model(model, keyhole::parse_kv_sharing(kv));
        const keyhole::ResolvedPolicy full =
            keyhole::resolve(keyhole::preset_params(keyhole::Preset::full), 33, 1);
        const auto cache = backend->make_cache(full, variant == model ? nullptr : variant);
        keyhole::RowOutput out;
        const keyhole::LanePrefill prefill{cache.get(), {}, &out};
        backend->prefill(tokens, {&prefill, 1}, nullptr, {});
        const std::int64_t equation = 2 * n_kv_heads * shape.head_dim * 4;
        EXPECT_EQ(keyhole::kv_bytes_per_token(variant->config(), keyhole::KvType::f32), equation) << kv;
        EXPECT_EQ(cache->use().stored_bytes, 33 * equation) << kv;
        EXPECT_EQ(cache->use().stored_tokens, 33 * n_kv_heads) << kv;
        EXPECT_GE(cache->use().allocated_bytes, 33 * equation) << kv;
    }
}

TEST(KvVariantsOf, NewNeuronsChangeTheFunctionAsTheReferenceSays) {
    TinyShape shape;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    Weights wide = shared_weights(load_weights(tiny.folder()), 2, 1);
    // 8 KV heads become 2: lost 6 * 2 * 32 * 8 = 3072 without biases, 1536 per layer, 48 times d_model, 16
    // for each of three matrices.
    constexpr int kMore = 16;
    for (LayerWeights& l : wide.layers) {
        for (Matrix* m : {&l.gate, &l.up}) {
            const Vector first(m->values.begin(), m->values.begin() + kMore * m->cols);
            m->values.insert(m->values.end(), first.begin(), first.end());
            m->rows += kMore;
        }
        Vector down;
        for (int r = 0; r < l.down.rows; ++r) {
            const auto row = l.down.values.begin() + r * l.down.cols;
            down.insert(down.end(), row, row + l.down.cols);
            down.insert(down.end(), row, row + kMore);
        }
        l.down.values = down;
        l.down.cols += kMore;
    }
    Case c = preset_case("h2o", 6, 8);
    c.spec += ",kv=mqa,compensate=on";
    c.weights = &wide;
    const std::vector<int> tokens = random_tokens(24, 12);
    const std::span<const int> all(tokens);
    expect_agreement(
        compare_with_reference(model, wide, std::vector<Case>{c}, all.first(16), all.subspan(16)));
}

}  // namespace
}  // namespace reference::test_kv_variants
