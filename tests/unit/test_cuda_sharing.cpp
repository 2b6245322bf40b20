// Layers that share KV heads, and lanes that share them otherwise than their model, on the CUDA backend,
// against the double-precision reference and the CPU backend.
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/model/kv_sharing.h"
#include "tests/reference/any_model.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/executor_under_test.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/session_run.h"
#include "tests/reference/sharing_cases.h"
#include "tests/reference/source_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace reference::test_cuda_sharing {
namespace {

std::unique_ptr<keyhole::Backend> on_cuda(const std::shared_ptr<const keyhole::Model>& model) {
    return cuda_backend(model);
}

class CudaVariants : public CudaBackend, public ::testing::WithParamInterface<Sharing> {};

TEST_P(CudaVariants, EveryRowAgreesWithTheReference) {
    expect_sharing_agrees(GetParam(), on_cuda);
}

INSTANTIATE_TEST_SUITE_P(Sharings, CudaVariants, ::testing::ValuesIn(kSharings));

TEST_F(CudaBackend, AModelThatSharesBetweenLayersAgreesWithTheReference) {
    expect_own_sharing_agrees(on_cuda);
}

TEST_F(CudaBackend, LanesOfAnySharingFollowTheCpu) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    Pair pair(shape);
    pair.start({"full", "h2o:budget=8,kv=gqa:2,shadow=on", "keyformer:budget=8,kv=(mlkv:m=2,g=1)",
                "tova:budget=8,kv=mqa,compensate=on", "h2o:budget=8", "sink:budget=8,kv=mqa,positions=cache",
                "full:kv=(mlkv:m=2,g=2),merge=released,shadow=on", "h2o:budget=8,kv=gqa:2,dialect=released",
                "tova:budget=9,kv=(mlkv:m=2,g=2),merge=released,positions=compressed"});
    pair.step(4);
    pair.fork(2);
    pair.pin(2, 1, 31);
    pair.evict(1, 3, pair.lanes[1].cpu->stored_positions(3).front());
    pair.step(6);
    pair.apply(2, "h2o:budget=5,kv=(mlkv:m=2,g=1)");
    pair.apply(3, "a2sf:budget=6,scope=shared,kv=mqa,compensate=on");
    pair.apply(9, "tova:budget=6,kv=(mlkv:m=2,g=1)");
    pair.step(12);
}

/// Biases, norms of heads, ALiBi and a window go through the same code.
TEST_F(CudaBackend, SharingInOtherFamiliesFollowsTheCpu) {
    for (const bool alibi : {false, true}) {
        AnyShape shape = any_shape();
        shape.config.n_layers = 4;
        shape.config.n_kv_heads = 4;
        shape.config.norm = keyhole::NormKind::layer;
        shape.config.parallel = true;
        shape.config.clip_qkv = 0.9f;
        shape.config.d_ff = 52;  // not a whole number of packs
        shape.biases = true;
        shape.qk_norm = !alibi;
        if (alibi) shape.config.positions = keyhole::PositionKind::alibi;
        if (!alibi) shape.config.window = {9, 9, 9, 9};
        Pair pair(any_model(shape));
        pair.start({"full", "h2o:budget=7,kv=mqa", "h2o:budget=7,kv=(mlkv:m=2,g=2),shadow=on",
                    "keyformer:budget=7,kv=(mlkv:m=2,g=2),merge=released,shadow=on"});
        pair.step(10);
    }
}

// cuBLAS from one lane on; each group's K and V separately.
TEST_F(CudaBackend, ProductsOfLanesOfAnySharingFollowTheCpu) {
    AnyShape shape = any_shape();
    shape.config.n_layers = 4;
    shape.config.n_kv_heads = 4;
    shape.biases = true;
    Pair pair(any_model(shape), 30, 1, {.cublas_from = 2});
    pair.start(
        {"full", "h2o:budget=7,kv=mqa,compensate=on", "h2o:budget=7,kv=(mlkv:m=2,g=2)", "full:kv=mqa"});
    pair.step(6);
}

TEST_F(CudaBackend, ALaneDoesNotDependOnTheSharingBesideIt) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    expect_lanes_stand_alone(keyhole::load_model(tiny.folder()),
                             {"full", "h2o:budget=6,kv=(mlkv:m=2,g=1)", "tova:budget=6,kv=mqa,compensate=on",
                              "h2o:budget=6", "a2sf:budget=6,kv=(mlkv:m=2,g=1),merge=released"});
}

/// q, o and the output run once for all lanes, k and v once per model, MLPs once for all models with the same
/// MLP, in any order of lanes.
TEST(CudaBackendOnHost, ProductsMergeWhateverTheOrderOfLanes) {
    TinyShape shape;
    shape.n_layers = 2;
    shape.n_kv_heads = 4;
    const auto model = keyhole::load_model(TinyModel(shape).folder());
    const std::vector<int> tokens = random_tokens(14, 8);
    const std::span<const int> all(tokens);
    const std::string a = "full", b = "full:kv=gqa:2", c = "h2o:budget=9", wide = "full:kv=mqa,compensate=on";
    const std::vector<std::vector<std::string>> orders = {
        {a, c, b, wide}, {a, wide, b, c}, {b, wide, a, c}, {wide, c, b, a}, {c, b, wide, a}};
    const auto run = [&](const std::vector<std::string>& specs, int cublas_from, int* products_of_a_row) {
        const auto executor = std::make_shared<FailingExecutor>();
        const auto backend = keyhole::make_cuda_backend(model, executor, {.cublas_from = cublas_from});
        run_backend(*backend, model, specs, all.first(13), all.last(1));
        const int n_products = executor->n_products;
        LaneRows rows = run_backend(*backend, model, specs, all.first(12), all.last(2));
        if (products_of_a_row != nullptr) *products_of_a_row = executor->n_products - 2 * n_products;
        return rows;
    };
    const LaneRows first = run(orders[0], 100, nullptr);
    for (const std::vector<std::string>& order : orders) {
        SCOPED_TRACE(fmt::format("{}", fmt::join(order, " ")));
        const LaneRows rows = run(order, 100, nullptr);
        for (std::size_t lane = 0; lane < order.size(); ++lane) {
            const auto same = std::find(orders[0].begin(), orders[0].end(), order[lane]) - orders[0].begin();
            EXPECT_EQ(first_difference(rows, lane, first, keyhole::to_index(same)), "") << order[lane];
        }
        int n_products = 0;
        run(order, 1, &n_products);
        // q and o; k and v of three models; gate, up and down of two MLPs; the output.
        EXPECT_EQ(n_products, shape.n_layers * (2 + 3 * 2 + 2 * 3) + 1);
    }
}

TEST_F(CudaBackend, OneGraphServesLanesOfAnySharing) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    EXPECT_EQ(graphs_of(keyhole::load_model(tiny.folder()),
                        {"full", "h2o:budget=9,kv=(mlkv:m=2,g=1),merge=released", "tova:budget=9,kv=mqa"}),
              1);
}

/// Returns the model with all weights as floats, so that both backends store K and V alike.
std::shared_ptr<const keyhole::Model> in_floats(const keyhole::Model& model) {
    auto pages = std::make_shared<std::vector<keyhole::Pages>>();
    keyhole::ModelWeights weights = model.weights();
    const bool tied = weights.output.data == weights.embedding.data;
    const auto widen = [&](keyhole::Weight& w) {
        if (w.data == nullptr || w.dtype == keyhole::DType::f32) return;
        const auto n = keyhole::to_index(w.rows * w.cols);
        keyhole::Pages& to = pages->emplace_back(n * sizeof(float));
        const auto* from = static_cast<const std::uint16_t*>(w.data);
        for (std::size_t i = 0; i < n; ++i)
            static_cast<float*>(to.data())[i] = w.dtype == keyhole::DType::bf16
                                                    ? keyhole::float_from_bf16(from[i])
                                                    : keyhole::float_from_fp16(from[i]);
        w = {keyhole::DType::f32, to.data(), w.rows, w.cols};
    };
    for (keyhole::Weight* w : {&weights.embedding, &weights.output, &weights.final_norm}) widen(*w);
    if (tied) weights.output = weights.embedding;
    for (keyhole::LayerWeights& l : weights.layers)
        for (keyhole::Weight* w :
             {&l.attention_norm, &l.q, &l.k, &l.v, &l.o, &l.mlp_norm, &l.gate, &l.up, &l.down})
            widen(*w);
    return std::make_shared<const keyhole::Model>(model.path(), model.config(), weights,
                                                  model.shared_tokenizer(), model.hash(), pages);
}

// The five models that Keyhole ships: own sharing, shadows, pins, forks.
TEST_F(CudaBackend, TheDemoModelsFollowTheCpu) {
    namespace fs = std::filesystem;
    const fs::path models = source_folder() / "assets/models";
    std::set<std::string> kinds;
    for (const char* name :
         {"keyhole-base", "keyhole-gqa2", "keyhole-mqa", "keyhole-mlkv-half", "keyhole-mlkv2"}) {
        SCOPED_TRACE(name);
        if (!fs::exists(models / name / "config.json")) GTEST_SKIP() << models / name << " is not here";
        const auto model = in_floats(*keyhole::load_model(models / name));
        kinds.insert(keyhole::kv_name(model->config()));
        Pair pair(model, 40);
        pair.tolerance = 1e-3;  // logits of a trained model have a wider range
        std::vector<std::string> specs = {"h2o:budget=16,shadow=on", "keyformer:budget=16"};
        if (name == std::string("keyhole-base")) specs.push_back("h2o:budget=16,kv=mqa,compensate=on");
        pair.start(specs);
        pair.step(2);
        pair.pin(0, 0, 40);
        pair.fork(1);
        pair.apply(pair.lanes.size() - 1, "tova:budget=10,scope=shared");
        pair.step(3);
    }
    EXPECT_EQ(kinds.size(), 5u);
}

TEST_F(CudaBackend, SessionsThatChangeTheSharingFollowTheCpu) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel folder(shape);
    keyhole::RunSpec spec =
        run_spec(random_text(30, 9), {"full", "h2o:budget=12", "keyformer:budget=12,kv=mqa"}, 40);
    spec.ignore_eos = true;
    expect_sessions_follow_the_cpu(
        keyhole::load_model(folder.folder()), spec,
        {"step 5", "lane 1 h2o:budget=8,kv=(mlkv:m=2,g=1)", "fork 0 tova:budget=7,kv=gqa:2", "step 5",
         "pin 1 39", "lane 2 keyformer:budget=9", "step 5", "rewind 42", "lane 0 full:kv=mqa", "step 6"});
}

}  // namespace
}  // namespace reference::test_cuda_sharing
