// The whole CUDA backend against the double-precision reference and the CPU backend: rows, kept sets and
// caches. As a unit test the kernels run on the host. Without a device this is the evidence for everything
// but the device itself. Tests labelled gpu run the same cases on a device.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/device_model.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/kv_sharing.h"
#include "engine/session/session.h"
#include "engine/trace/record.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/executor_under_test.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/model_parts.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

namespace reference::test_cuda_backend {
namespace {

using keyhole::KvCache;
using keyhole::LaneStep;
using keyhole::ResolvedPolicy;
using keyhole::RowOutput;

TEST_F(CudaBackend, EveryPresetAgreesWithTheReference) {
    for (const int n_kv_heads : {4, 2, 1})
        for (const int n_prompt : {1, 7, 33}) {
            const int n_decode = 12;
            std::vector<Case> cases;
            for (const char* preset : {"full", "window", "sink", "key", "h2o", "tova", "keyformer", "a2sf"})
                for (int budget : {1, 4, 16})
                    if (std::string(preset) != "full" || budget == 1)
                        cases.push_back(preset_case(preset, budget, n_decode));
            TinyShape shape;
            shape.n_kv_heads = n_kv_heads;
            shape.seed = static_cast<std::uint64_t>(n_kv_heads);
            const TinyModel folder(shape);
            const auto model = keyhole::load_model(folder.folder());
            const auto backend = cuda_backend(model);
            const std::vector<int> tokens = random_tokens(n_prompt + n_decode, shape.seed + 100);
            const std::span<const int> all(tokens);
            const Agreement a = compare_with_reference(
                model, load_weights(folder.folder()), cases, all.first(keyhole::to_index(n_prompt)),
                all.subspan(keyhole::to_index(n_prompt)), backend.get());
            for (const double worst : {a.next_logits, a.attention, a.logits, a.noise, a.scores})
                EXPECT_LT(worst, 1.0) << a.worst;
            EXPECT_LE(a.n_near_ties, 1 + a.n_selections / 500);
        }
}

TEST_F(CudaBackend, DialectsPositionsAndCadencesFollowTheCpu) {
    TinyShape shape;
    shape.head_dim = 16;
    Pair pair(shape);
    pair.start({"full", "window:budget=8,dialect=released", "h2o:budget=8,dialect=released",
                "keyformer:budget=8,dialect=released", "a2sf:budget=8,dialect=released",
                "tova:budget=8,dialect=released", "sink:budget=8,dialect=released",
                "dilated:budget=6,dilation=2", "tova:budget=9,positions=compressed", "h2o:budget=9,every=5",
                "h2o:budget=9,scope=shared,pool=max", "a2sf:budget=9,scope=layer,pool=sum",
                "keyformer:budget=9,noise=gaussian,draw=row,damping=0.5", "h2o:budget=9,score_dtype=bf16",
                "key:budget=7,score_dtype=fp16"});
    pair.step(25);
}

TEST_F(CudaBackend, ShadowsFollowTheCpus) {
    Pair pair(TinyShape{});
    pair.start({"full:shadow=on", "h2o:budget=8,shadow=on", "h2o:budget=8",
                "h2o:budget=8,dialect=released,shadow=on", "tova:budget=8,positions=compressed,shadow=on"});
    pair.step(4);
    EXPECT_EQ(pair.lanes[1].cuda_out.shadow.retained_mass.size(), 8u);
    EXPECT_TRUE(pair.lanes[2].cuda_out.shadow.retained_mass.empty());
    pair.fork(1);
    pair.step(6);
    pair.apply(1, "h2o:budget=5");
    pair.apply(2, "h2o:budget=5,shadow=on");  // too late to start a shadow
    pair.step(3);
    for (std::size_t lane = 0; lane < pair.lanes.size(); ++lane)
        EXPECT_EQ(pair.lanes[lane].cuda->use().shadow_bytes > 0, lane != 1 && lane != 2) << lane;
}

/// Rounds widths up to multiples of 8: the kernels read packs of 8.
AnyShape in_packs(const ModelPart& part) {
    AnyShape shape = any_shape();
    part.change(shape);
    const auto up = [](int& width) { width = (width + 7) / 8 * 8; };
    for (int* width : {&shape.config.head_dim, &shape.config.d_model, &shape.d_embed}) up(*width);
    return shape;
}

class CudaDescription : public CudaBackend, public ::testing::WithParamInterface<ModelPart> {};

TEST_P(CudaDescription, FollowsTheCpu) {
    const auto model = any_model(in_packs(GetParam()));
    Pair pair(model);
    std::vector<std::string> specs = {"full:shadow=on", "h2o:budget=12,scope=layer", "keyformer:budget=10",
                                      "h2o:budget=9,dialect=released"};
    // Without positions equal tokens have equal keys, and ideal sets tie.
    if (model->config().positions != PositionKind::alibi) specs.back() += ",shadow=on";
    if (model->config().positions != PositionKind::learned)
        for (const char* moved : {"sink:budget=12,positions=cache", "h2o:budget=9,positions=compressed"})
            specs.push_back(moved);
    pair.start(specs);
    pair.step(14);
}

INSTANTIATE_TEST_SUITE_P(Parts, CudaDescription, ::testing::ValuesIn(kModelParts),
                         [](const ::testing::TestParamInfo<ModelPart>& test) { return test.param.name; });

// What the kernels lack is refused by name, in one line that says what to do.
TEST_F(CudaBackend, PartsOfTheCpuAloneAreRefused) {
    for (const ModelPart& part : kCpuParts) {
        AnyShape shape = any_shape();
        part.change(shape);
        const std::string why = keyhole::cuda::unsupported_shape(*any_model(shape));
        EXPECT_NE(why.find("CUDA does not compute that yet: use --backend cpu"), std::string::npos)
            << part.name << ": " << why;
        EXPECT_EQ(why.find('\n'), std::string::npos) << why;
        EXPECT_THROW(cuda_backend(any_model(shape)), keyhole::Error) << part.name;
    }
    keyhole::ModelWeights weights = any_model(any_shape())->weights();
    weights.layers[1].down.dtype = keyhole::DType::iq4_nl;
    const auto model = any_model(any_shape());
    const keyhole::Model other("other", model->config(), weights, model->shared_tokenizer(), "other", model);
    EXPECT_EQ(keyhole::cuda::unsupported_shape(other),
              "other has weights of type iq4_nl, and CUDA does not compute that yet: use --backend cpu");
}

// Folders of every family, as loaded. Folders whose widths do not fit a pack are refused by name.
TEST_F(CudaBackend, EveryFamilyFollowsTheCpu) {
    namespace fs = std::filesystem;
    const fs::path families = source_folder() / "tests/fixtures/families";
    if (!fs::exists(families)) GTEST_SKIP() << families << " is not here";
    int n_run = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(families)) {
        SCOPED_TRACE(entry.path().filename().string());
        const auto model = keyhole::load_model(entry.path());
        const bool fits = model->config().head_dim % 8 == 0 && model->weights().embedding.cols % 8 == 0;
        if (!fits || !keyhole::cuda::unsupported_shape(*model).empty()) {
            EXPECT_THROW(cuda_backend(model), keyhole::Error);
            continue;
        }
        ++n_run;
        Pair pair(model, 14);
        bool is_bf16 = false, is_f16 = false;
        keyhole::visit_weights(model->weights(), [&](const keyhole::Weight& w) {
            is_bf16 = is_bf16 || w.dtype == keyhole::DType::bf16;
            is_f16 = is_f16 || w.dtype == keyhole::DType::f16;
        });
        const bool all_floats = !is_bf16 && !is_f16;
        const std::vector<std::string> specs =
            all_floats ? std::vector<std::string>{"full", "h2o:budget=9", "keyformer:budget=8,scope=layer"}
                       : std::vector<std::string>{"full", "window:budget=9"};
        // K, V and the prompt have 16 bits on the device: values are near, and sets are equal where positions
        // alone decide them. A prompt in floats has the CPU's values.
        if (!all_floats) {
            Pair(model, 14, 1, {.weights_precision = false}).start(specs);
            pair.tolerance = is_bf16 ? 1e-1 : 5e-2;
        }
        pair.start(specs);
        pair.step(9);
    }
    EXPECT_GE(n_run, 17);
}

// Matrices stay quantised on the device. A prompt widens them; a row multiplies in integers, or widens them.
TEST_F(CudaBackend, QuantisedModelsFollowTheCpu) {
    for (const char* name : {"bytes.gguf", "scores.gguf"}) {
        SCOPED_TRACE(name);
        const auto model = keyhole::load_model(source_folder() / "tests/fuzz/seeds/gguf" / name);
        ASSERT_TRUE(keyhole::is_quantised(model->weights().layers[0].q.dtype));
        EXPECT_EQ(keyhole::cuda::common_type(*model), keyhole::DType::f32);
        // Embedding of 16 tokens; q, o, gate, up and down of 32 x 32; k and v of 16 x 32.
        std::int64_t n_bytes = 0;
        keyhole::visit_weights(model->weights(), [&](const keyhole::Weight& w) {
            if (w.cols > 1) n_bytes += keyhole::stored_bytes(w);
        });
        EXPECT_LT(n_bytes, 2 * (16 * 32 + 5 * 32 * 32 + 2 * 16 * 32));
        EXPECT_EQ(keyhole::cuda::device_weight_bytes(*model, false), n_bytes);
        for (const std::int64_t tile : {std::int64_t{16} << 20, std::int64_t{7 * 32}, std::int64_t{1}}) {
            for (const bool integers : {true, false}) {
                Pair pair(model, 14, 1, {.integers = integers, .widened_tile = tile});
                EXPECT_EQ(pair.cuda->name().ends_with(", integers"), integers) << pair.cuda->name();
                pair.start({"full", "h2o:budget=9", "keyformer:budget=8,scope=layer"});
                pair.step(9);
            }
        }
    }
}

TEST_F(CudaBackend, WidthsThatFitNoPackAreRefusedWithTheirNumbers) {
    for (const auto& change : std::vector<std::function<void(AnyShape&)>>{
             [](AnyShape& s) { s.config.head_dim = 10; }, [](AnyShape& s) { s.config.d_model = 20; },
             [](AnyShape& s) { s.d_embed = 20; }}) {
        AnyShape shape = any_shape();
        change(shape);
        const auto model = any_model(shape);
        try {
            cuda_backend(model);
            ADD_FAILURE() << "taken";
        } catch (const keyhole::Error& error) {
            EXPECT_EQ(error.code(), keyhole::ErrorCode::unsupported);
            EXPECT_NE(std::string(error.what()).find("multiple"), std::string::npos) << error.what();
        }
    }
}

// The weights' memory is that of the file, and a prompt widens no more than a tile.
TEST_F(CudaBackend, QuantisedWeightsTakeTheirOwnBytes) {
    const auto model = keyhole::load_model(source_folder() / "tests/fuzz/seeds/gguf/bytes.gguf");
    const std::shared_ptr<keyhole::cuda::Executor> executor = keyhole::cuda::make_host_executor();
    std::int64_t floats = 0;  // of norms
    keyhole::visit_weights(model->weights(), [&](const keyhole::Weight& w) {
        if (w.cols == 1) floats += 4 * w.rows;
    });
    for (const bool lays : {false, true}) {
        SCOPED_TRACE(lays);
        keyhole::cuda::WeightStore store(executor, keyhole::cuda::common_type(*model), lays);
        const std::int64_t before = executor->memory().free_bytes;
        const keyhole::cuda::DeviceModel weights(store, *model);
        EXPECT_EQ(store.uploaded_bytes(), keyhole::cuda::device_weight_bytes(*model, lays) + floats);
        const auto list = static_cast<std::int64_t>(weights.outputs.size_bytes());  // one entry a layer
        EXPECT_EQ(before - executor->memory().free_bytes, store.uploaded_bytes() + list);
        EXPECT_EQ(keyhole::make_cuda_backend(model, executor, {.integers = lays})->weight_bytes(),
                  store.uploaded_bytes());
        EXPECT_FALSE(weights.layers[0].q.view().is_plain);
        EXPECT_EQ(weights.layers[0].q.view().is_laid, lays);
        EXPECT_FALSE(weights.embedding.view().is_laid);
        EXPECT_EQ(weights.output().is_laid, lays);  // also where it is tied
    }
}

// Merged keys and values are floats beside quantised queries, which other lanes share.
TEST_F(CudaBackend, MergedHeadsOfAQuantisedModelFollowTheCpu) {
    for (const char* name : {"bytes.gguf", "scores.gguf"})
        for (const bool integers : {true, false}) {
            SCOPED_TRACE(::testing::Message() << name << " " << integers);
            Pair pair(keyhole::load_model(source_folder() / "tests/fuzz/seeds/gguf" / name), 14, 1,
                      {.integers = integers});
            pair.start({"full", "h2o:budget=9,kv=mqa", "tova:budget=9"});
            pair.step(6);
        }
}

// cuBLAS has no products with quantised matrices, so that our own kernels multiply for any number of lanes.
TEST_F(CudaBackend, ManyLanesOfAQuantisedModelFollowTheCpu) {
    Pair pair(keyhole::load_model(source_folder() / "tests/fuzz/seeds/gguf/scores.gguf"), 14, 1,
              {.cublas_from = 1});
    pair.start(std::vector<std::string>(17, "h2o:budget=9"));
    pair.step(4);
    for (const int n_lanes : {3, 8}) {
        Pair few(pair.model, 14);
        few.start(std::vector<std::string>(keyhole::to_index(n_lanes), "tova:budget=9"));
        few.step(3);
    }
}

// cuBLAS from one lane on. With float weights the results differ only by the order of sums.
TEST_F(CudaBackend, ProductsOfManyLanesFollowTheCpu) {
    AnyShape shape = any_shape();
    shape.biases = shape.output_bias = true;
    shape.d_embed = 24;
    Pair pair(any_model(shape), 30, 1, {.cublas_from = 1});
    pair.start({"full", "h2o:budget=12", "keyformer:budget=10"});
    pair.step(8);
}

// With 16-bit weights the inputs are rounded too, for lanes and for prompts.
TEST_F(CudaBackend, ProductsInTheTypeOfTheWeightsStayNear) {
    for (const StoredAs type : {StoredAs::f16, StoredAs::bf16}) {
        TinyShape shape;
        shape.dtype = type;
        const TinyModel folder(shape);
        const auto model = keyhole::load_model(folder.folder());
        const std::vector<int> tokens = random_tokens(40, 5);
        const std::span<const int> all(tokens);
        const std::vector<std::string> specs = {"full", "window:budget=9"};
        const auto exact = cuda_backend(model, 1, {.weights_precision = false}),
                   narrow = cuda_backend(model, 1, {1, true});
        const LaneRows a = run_backend(*exact, model, specs, all.first(30), all.subspan(30)),
                       b = run_backend(*narrow, model, specs, all.first(30), all.subspan(30));
        double worst = 0;
        for (std::size_t lane = 0; lane < specs.size(); ++lane)
            for (std::size_t row = 0; row < a[lane].size(); ++row)
                for (std::size_t v = 0; v < a[lane][row].next_logits.size(); ++v)
                    worst = std::max(
                        worst, std::abs(double(a[lane][row].next_logits[v]) - b[lane][row].next_logits[v]));
        EXPECT_LT(worst, type == StoredAs::f16 ? 5e-2 : 3e-1);
        EXPECT_GT(worst, 0) << "nothing was rounded";
    }
}

// As with bf16 on devices before Ampere: the backend uses its own kernels, and prompts in floats.
TEST(CudaBackendOnHost, WithoutProductsOfTheTypeNothingIsRounded) {
    TinyShape shape;
    shape.dtype = StoredAs::bf16;
    const TinyModel folder(shape);
    const auto model = keyhole::load_model(folder.folder());
    const std::vector<int> tokens = random_tokens(30, 5);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"full", "window:budget=9"};
    const auto executor = std::make_shared<FailingExecutor>();
    executor->has_typed_products = false;
    const auto without = keyhole::make_cuda_backend(model, executor, {1, true}),
               plain = keyhole::make_cuda_backend(model, keyhole::cuda::make_host_executor(),
                                                  {.weights_precision = false});
    const LaneRows a = run_backend(*without, model, specs, all.first(20), all.subspan(20)),
                   b = run_backend(*plain, model, specs, all.first(20), all.subspan(20));
    for (std::size_t lane = 0; lane < specs.size(); ++lane)
        for (std::size_t row = 0; row < a[lane].size(); ++row)
            EXPECT_EQ(difference(a[lane][row], b[lane][row]), "") << specs[lane] << " row " << row;
}

TEST_F(CudaBackend, OverridesGiveHeadsRoomOfTheirOwn) {
    Pair pair(TinyShape{});
    pair.start({"h2o:budget=8,budget@L1=12,alpha@L0.H0-1=0.5", "keyformer:budget=8,tau@L1=1..3"});
    pair.step(20);
}

TEST_F(CudaBackend, CommandsBetweenRowsFollowTheCpu) {
    Pair pair(TinyShape{});
    pair.start({"full", "h2o:budget=12", "tova:budget=12", "keyformer:budget=12"});
    pair.step(3);
    pair.pin(1, 0, 30);
    pair.pin(2, 1, 31);
    pair.pin(3, 2, 32);
    pair.evict(0, 1, 4);
    pair.step(12);
    pair.apply(1, "h2o:budget=6");
    pair.apply(2, "h2o:budget=12");   // from one set per layer to one per head
    pair.apply(3, "a2sf:budget=10");  // the forgetting sum starts from the plain sum
    pair.step(8);
    pair.apply(1, "tova:budget=9");  // and to one per layer again
    pair.apply(2, "h2o:budget=7,scope=shared");
    pair.apply(3, "keyformer:budget=8,seed=5");
    pair.step(8);
    pair.apply(2, "h2o:budget=8,scope=column");
    pair.step(8);
    pair.apply(2, "h2o:budget=7,score@L0=(s+2*p),choose@L1=(s*knorm)");
    pair.step(8);
    pair.apply(2, "h2o:budget=6,score@L0-1=(s+2*p),choose@L1=(caote)");  // from the sum of attention
    pair.step(4);
    pair.apply(2, "h2o:budget=7,scope=shared");
    pair.step(4);
    pair.pin(1, 0, 30, false);
    for (int g = 0; g < 4; ++g) pair.evict(1, g, pair.lanes[1].cpu->stored_positions(g).front());
    pair.apply(0, "h2o:budget=10");
    pair.step(6);
}

TEST_F(CudaBackend, AClonedCacheGoesItsOwnWay) {
    Pair pair(TinyShape{});
    pair.start({"keyformer:budget=10"});
    pair.step(4);
    pair.pin(0, 1, 33);
    pair.fork(0);
    pair.step(5);
    pair.apply(1, "h2o:budget=5");
    pair.step(8);
}

TEST_F(CudaBackend, StoredTypesFollowTheCpu) {
    for (const StoredAs type : {StoredAs::f16, StoredAs::bf16}) {
        TinyShape shape;
        shape.dtype = type;
        const TinyModel folder(shape);
        const auto model = keyhole::load_model(folder.folder());
        const std::vector<int> tokens = random_tokens(40, 5);
        const std::vector<std::string> specs = {"full", "window:budget=9"};
        const std::span<const int> all(tokens);
        const auto backend = cuda_backend(model, 1, {.weights_precision = false});
        const LaneRows a = run_engine(model, specs, all.first(30), all.subspan(30)),
                       b = run_backend(*backend, model, specs, all.first(30), all.subspan(30));
        // Keys and values are stored in the weights' type, so decoded rows differ by its rounding. The row of
        // a prompt in floats does not.
        const double rounding = type == StoredAs::f16 ? 2e-2 : 1e-1;
        for (std::size_t lane = 0; lane < specs.size(); ++lane)
            for (std::size_t row = 0; row < a[lane].size(); ++row)
                for (std::size_t v = 0; v < a[lane][row].next_logits.size(); ++v)
                    ASSERT_NEAR(a[lane][row].next_logits[v], b[lane][row].next_logits[v],
                                row == 0 ? 1e-3 : rounding)
                        << "lane " << lane << " row " << row;
    }
}

// The CPU rounds keys and values at the same place: after the rotation, and after a prompt in floats. What is
// left are numbers that two orders of a sum round to two neighbours, and what follows from them.
TEST_F(CudaBackend, BothBackendsRoundKeysAndValuesAlike) {
    for (const StoredAs type : {StoredAs::f16, StoredAs::bf16}) {
        TinyShape shape;
        shape.dtype = type;
        const TinyModel folder(shape);
        const auto model = keyhole::load_model(folder.folder());
        const std::vector<int> tokens = random_tokens(40, 5);
        const std::string same = type == StoredAs::f16 ? "kv_dtype=f16" : "kv_dtype=bf16";
        const std::vector<std::string> alike = {"full:" + same, "window:budget=9," + same},
                                       exact = {"full:kv_dtype=f32", "window:budget=9,kv_dtype=f32"};
        const std::span<const int> all(tokens);
        const auto backend = cuda_backend(model, 1, {.weights_precision = false});
        const auto run = [&](const std::vector<std::string>& specs) {
            return run_engine(model, specs, all.first(30), all.subspan(30));
        };
        const LaneRows on_device = run_backend(*backend, model, alike, all.first(30), all.subspan(30)),
                       rounded = run(alike), in_float = run(exact);
        double near = 0, far = 0;  // squares
        for (std::size_t lane = 0; lane < alike.size(); ++lane)
            for (std::size_t row = 1; row < rounded[lane].size(); ++row)
                for (std::size_t v = 0; v < rounded[lane][row].next_logits.size(); ++v) {
                    const double device = on_device[lane][row].next_logits[v];
                    near += std::pow(device - rounded[lane][row].next_logits[v], 2);
                    far += std::pow(device - in_float[lane][row].next_logits[v], 2);
                }
        EXPECT_LT(near, far / 25) << same;
    }
}

// Weights in one type, K and V in another.
TEST_F(CudaBackend, KeysAndValuesHaveTheTypeThatTheLaneAsksFor) {
    Pair pair(TinyShape{}, 30);
    // The two backends may round a number to two neighbours; the sets are equal where positions decide them.
    pair.start({"full:kv_dtype=f16", "window:budget=9,kv_dtype=bf16", "full:kv_dtype=f32",
                "sink:budget=11,positions=cache,kv_dtype=f16", "h2o:budget=9,kv_dtype=f32"});
    pair.tolerance = 4e-3;
    pair.step(6);
    const auto row_bytes = [&](std::size_t lane) {
        const auto use = pair.lanes[lane].cuda->use();
        EXPECT_EQ(use.stored_bytes, pair.lanes[lane].cpu->use().stored_bytes) << lane;
        return use.stored_bytes / use.stored_tokens;
    };
    EXPECT_EQ(row_bytes(0), 2 * 8 * 2);
    EXPECT_EQ(row_bytes(1), 2 * 8 * 2);
    EXPECT_EQ(row_bytes(2), 2 * 8 * 4);
    pair.fork(0);
    pair.apply(1, "window:budget=9,kv_dtype=f32");
    pair.apply(2, "window:budget=14,kv_dtype=bf16");
    pair.apply(5, "full:kv_dtype=bf16,noise=gumbel");
    pair.evict(5, 1, 3);
    EXPECT_EQ(row_bytes(1), 2 * 8 * 4);
    EXPECT_EQ(row_bytes(2), 2 * 8 * 2);
    EXPECT_EQ(row_bytes(5), 2 * 8 * 2);
    pair.tolerance = 3e-2;  // bf16 in a lane whose rows go on
    pair.step(8);
}

TEST_F(CudaBackend, LanesOfDifferentTypesStandAlone) {
    const TinyModel folder({.dtype = StoredAs::f16});
    expect_lanes_stand_alone(keyhole::load_model(folder.folder()),
                             {"full", "keyformer:budget=9,kv_dtype=f32", "h2o:budget=9,kv_dtype=bf16",
                              "tova:budget=9,kv_dtype=f16", "window:budget=4,kv_dtype=f32"});
}

TEST_F(CudaBackend, BlocksOfKeysAndValuesAreRefusedInOneLine) {
    const TinyModel floats({}), halves({.dtype = StoredAs::f16});
    for (const auto& [folder, own, other] : {std::tuple{&floats, "f32", "q8"}, {&halves, "f16", "q8"}}) {
        const auto model = keyhole::load_model(folder->folder());
        const auto backend = cuda_backend(model);
        EXPECT_EQ(keyhole::kv_type_name(backend->kv_type(keyhole::KvType::automatic)), own);
        const std::string spec = std::string("h2o:budget=9,kv_dtype=");
        const auto cache = backend->make_cache(policy_of(spec + own, *model, 20));
        for (const auto& ask : std::vector<std::function<void(const ResolvedPolicy&)>>{
                 [&](const ResolvedPolicy& p) { backend->make_cache(p); },
                 [&](const ResolvedPolicy& p) { backend->apply_policy(*cache, p, 0); }})
            try {
                ask(policy_of(spec + other, *model, 20));
                ADD_FAILURE() << "taken";
            } catch (const keyhole::Error& error) {
                const std::string text = error.what();
                EXPECT_EQ(error.code(), keyhole::ErrorCode::unsupported);
                EXPECT_NE(text.find(std::string("kv_dtype=") + other), std::string::npos) << text;
                EXPECT_NE(text.find("--backend cpu"), std::string::npos) << text;
                EXPECT_EQ(text.find('\n'), std::string::npos) << text;
            }
        keyhole::RunSpec run = run_spec("Once upon a time", {spec + other}, 5);
        EXPECT_THROW(keyhole::Session(model, *backend, run), keyhole::Error);
    }
}

TEST_F(CudaBackend, NeitherThreadOrderNorCompanyChangesBits) {
    const TinyModel folder({});
    expect_lanes_stand_alone(keyhole::load_model(folder.folder()),
                             {"full", "keyformer:budget=9", "h2o:budget=9", "tova:budget=9",
                              "window:budget=4", "quest:read=6,page=2"});
}

TEST_F(CudaBackend, SessionsForkRewindAndReplayLikeTheCpus) {
    const TinyModel folder({});
    keyhole::RunSpec spec =
        run_spec(random_text(30, 9), {"full", "h2o:budget=12", "keyformer:budget=12"}, 30);
    spec.ignore_eos = true;
    expect_sessions_follow_the_cpu(keyhole::load_model(folder.folder()), spec,
                                   {"step 8", "fork 1 h2o:budget=6", "pin 2 37", "evict 0 5", "step 8",
                                    "rewind 40", "lane 1 tova:budget=10", "step 12"});
}

/// Collects prompt rows from tiles: values by (kind, lane, layer, head, row, column).
class Collector final : public keyhole::PrefillSink {
  public:
    using Key = std::tuple<char, int, int, int, int, int>;
    keyhole::RowRequest requested() const override { return kAllOfARow; }
    void attention(const keyhole::PrefillTile& t) override { take('a', t); }
    void logits(const keyhole::PrefillTile& t) override { take('l', t); }
    void noise(const keyhole::PrefillTile& t) override { take('n', t); }
    void scores(const keyhole::PrefillTile& t) override { take('s', t); }

    std::map<Key, float> values;

  private:
    void take(char kind, const keyhole::PrefillTile& t) {
        const std::lock_guard lock(mutex_);
        for (int i = 0; i < t.n_rows; ++i)
            for (int p = 0; p <= t.first_row + i; ++p)
                EXPECT_TRUE(values
                                .emplace(Key{kind, t.lane, t.layer, t.head, t.first_row + i, p},
                                         t.values[std::int64_t{i} * t.n_columns + p])
                                .second);
    }
    std::mutex mutex_;
};

TEST_F(CudaBackend, PromptRowsFollowTheCpu) {
    TinyShape shape;
    shape.n_layers = 3;
    shape.n_kv_heads = 2;
    const TinyModel folder(shape);
    const auto model = keyhole::load_model(folder.folder());
    const int n = 70;  // more than one CPU tile
    const std::vector<int> tokens = random_tokens(n, 3);
    const std::vector<std::string> of_all = {
        "h2o:budget=9", "keyformer:budget=9", "keyformer:budget=9,draw=row,seed=4",
        "a2sf:budget=9,scope=layer,pool=max", "h2o:budget=9,scope=shared"};
    // The model's own K and V; then two layers that read the first one's, with keys rotated or not.
    for (const char* kv : {"full", "full:kv=(mlkv:m=1,g=2)", "full:kv=(mlkv:m=1,g=1),merge=released"}) {
        SCOPED_TRACE(kv);
        const auto variant = keyhole::shared_model(model, keyhole::parse_lane_spec(kv).sharing);
        std::vector<std::string> specs = of_all;
        if (variant == model) specs.push_back("tova:budget=9,scope=column,pool=max");  // else refused
        Collector collected[2];
        for (const bool is_cuda : {false, true}) {
            const auto backend =
                is_cuda ? cuda_backend(model)
                        : keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, nullptr);
            std::vector<ResolvedPolicy> policies;
            std::vector<std::unique_ptr<KvCache>> caches;
            std::vector<RowOutput> out(specs.size());
            for (const std::string& spec : specs) policies.push_back(policy_of(spec, *variant, n));
            std::vector<keyhole::LanePrefill> lanes;
            for (std::size_t i = 0; i < specs.size(); ++i) {
                caches.push_back(backend->make_cache(policies[i], variant != model ? variant : nullptr));
                lanes.push_back({caches.back().get(), kAllOfARow, &out[i]});
            }
            backend->prefill(tokens, lanes, &collected[is_cuda], {});
        }
        ASSERT_EQ(collected[0].values.size(), collected[1].values.size());
        for (auto a = collected[0].values.begin(), b = collected[1].values.begin();
             a != collected[0].values.end(); ++a, ++b) {
            ASSERT_EQ(a->first, b->first);
            const auto& [kind, lane, layer, head, row, column] = a->first;
            ASSERT_NEAR(a->second, b->second, 2e-4 * std::max(1.0f, std::abs(a->second)))
                << kind << " of lane " << lane << " layer " << layer << " head " << head << " row " << row
                << " column " << column;
        }
    }
}

TEST_F(CudaBackend, AStoppedPromptLeavesCachesEmpty) {
    const TinyModel folder({});
    const auto model = keyhole::load_model(folder.folder());
    const auto backend = cuda_backend(model);
    const ResolvedPolicy policy = policy_of("full", *model, 20);
    const auto cache = backend->make_cache(policy);
    RowOutput out;
    const keyhole::LanePrefill lane{cache.get(), {}, &out};
    const std::vector<int> tokens = random_tokens(20, 3);
    EXPECT_THROW(backend->prefill(tokens, {&lane, 1}, nullptr, [](double done) { return done == 0; }),
                 keyhole::Error);
    EXPECT_EQ(cache->use().stored_tokens, 0);
    EXPECT_EQ(cache->use().allocated_bytes, 0);
    backend->prefill(tokens, {&lane, 1}, nullptr, {});
    EXPECT_EQ(cache->use().stored_tokens, 20 * 4);
}

TEST_F(CudaBackend, RowsShareOneGraph) {
    const TinyModel folder({});
    EXPECT_EQ(graphs_of(keyhole::load_model(folder.folder()),
                        {"full", "keyformer:budget=9", "tova:budget=9,positions=cache"}),
              1);
}

TEST_F(CudaBackend, MemoryFollowsTheBudget) {
    Pair pair(TinyShape{}, 200);
    pair.start({"full", "h2o:budget=20"});
    pair.step(2);
    const auto full = pair.lanes[0].cuda->use(), small = pair.lanes[1].cuda->use();
    EXPECT_EQ(small.stored_tokens, 4 * 20);
    EXPECT_EQ(small.stored_bytes, 4 * 20 * 2 * 8 * 4);
    EXPECT_LT(small.allocated_bytes, full.allocated_bytes / 5);
    pair.apply(0, "h2o:budget=10");
    EXPECT_LT(pair.lanes[0].cuda->use().allocated_bytes, full.allocated_bytes / 8);
}

}  // namespace
}  // namespace reference::test_cuda_backend
