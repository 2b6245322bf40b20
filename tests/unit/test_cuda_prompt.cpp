// Prompts with fused attention against the CPU backend: scores, kept tokens, the last row. What they launch
// and the memory that they take. The host runs the kernels.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/kv_sharing.h"
#include "tests/reference/any_model.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/failing_executor.h"
#include "tests/reference/launch_counter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace reference::test_cuda_prompt {
namespace {

namespace cuda = keyhole::cuda;
using keyhole::DType;
using keyhole::to_index;

/// Notes the sizes of all allocations too.
class Watched final : public LaunchCounter {
  public:
    void* allocate(std::size_t n) override {
        sizes.push_back(n);
        return ExecutorOverHost::allocate(n);
    }
    std::vector<std::size_t> sizes;
};

/// Grouped queries with heads of 16.
AnyShape shape_of_heads(DType type) {
    AnyShape shape = any_shape();
    shape.config.head_dim = shape.config.rotary.dims = 16;
    shape.dtype = type;
    return shape;
}

/// The largest differences as shares of the largest value, over all lanes.
struct Differences {
    double logits = 0, attention = 0, scores = 0;
    double gap = 0;  ///< from the threshold to a score that only one backend keeps, as a share
    int n_kept_apart = 0;
};

double difference(std::span<const float> cpu, std::span<const float> device) {
    double largest = 1e-30, worst = 0;
    EXPECT_EQ(cpu.size(), device.size());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
        EXPECT_EQ(std::isnan(cpu[i]), std::isnan(device[i]));
        if (std::isnan(cpu[i])) continue;
        largest = std::max(largest, std::abs(double(cpu[i])));
        worst = std::max(worst, std::abs(double(cpu[i]) - double(device[i])));
    }
    return worst / largest;
}

/// A backend's prompt.
struct Prompt {
    std::unique_ptr<keyhole::Backend> backend;
    std::vector<std::unique_ptr<keyhole::KvCache>> caches;
    std::vector<keyhole::RowOutput> out;

    Prompt(std::unique_ptr<keyhole::Backend> on, const std::shared_ptr<const keyhole::Model>& model,
           const std::shared_ptr<const keyhole::Model>& variant, const std::vector<std::string>& specs,
           const std::vector<int>& tokens, const keyhole::RowRequest& requested)
        : backend(std::move(on)), out(specs.size()) {
        std::vector<keyhole::LanePrefill> lanes;
        for (std::size_t i = 0; i < specs.size(); ++i) {
            caches.push_back(
                backend->make_cache(policy_of(specs[i], *variant, static_cast<int>(tokens.size())),
                                    variant != model ? variant : nullptr));
            lanes.push_back({caches.back().get(), requested, &out[i]});
        }
        backend->prefill(tokens, lanes, nullptr, {});
    }
};

/// Runs a prompt on both backends; kv: as in a lane's spec, such as "full:kv=(mlkv:m=1,g=2)".
Differences compare(const AnyShape& shape, const std::vector<std::string>& specs, int n,
                    const std::shared_ptr<Watched>& executor, const std::string& kv = "full") {
    const auto model = any_model(shape);
    const auto variant = keyhole::shared_model(model, keyhole::parse_lane_spec(kv).sharing);
    const std::vector<int> tokens = random_tokens(n, 3);
    const Prompt cpu(keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, nullptr), model,
                     variant, specs, tokens, kAllOfARow),
        device(keyhole::make_cuda_backend(model, executor), model, variant, specs, tokens, kAllOfARow);
    Differences worst;
    for (std::size_t lane = 0; lane < specs.size(); ++lane) {
        SCOPED_TRACE(specs[lane]);
        const keyhole::RowOutput &a = cpu.out[lane], &b = device.out[lane];
        worst.logits = std::max(worst.logits, difference(a.next_logits, b.next_logits));
        worst.attention = std::max(worst.attention, difference(a.values.attention, b.values.attention));
        EXPECT_EQ(difference(a.values.noise, b.values.noise) < 2e-6, true);
        for (int g = 0; g < variant->layout().n_kv_heads(); ++g) {
            const std::span<const float> of_cpu =
                                             std::span(a.values.scores).subspan(to_index(g * n), to_index(n)),
                                         of_device =
                                             std::span(b.values.scores).subspan(to_index(g * n), to_index(n));
            worst.scores = std::max(worst.scores, difference(of_cpu, of_device));
            const std::vector<std::int32_t> kept = cpu.caches[lane]->stored_positions(g),
                                            on_device = device.caches[lane]->stored_positions(g);
            EXPECT_EQ(kept.size(), on_device.size());
            std::vector<std::int32_t> apart;
            std::set_symmetric_difference(kept.begin(), kept.end(), on_device.begin(), on_device.end(),
                                          std::back_inserter(apart));
            const double largest = *std::max_element(of_cpu.begin(), of_cpu.end());
            worst.n_kept_apart += static_cast<int>(apart.size());
            double low = 1e30, high = -1e30;
            for (const std::int32_t position : apart) {
                low = std::min(low, double(of_cpu[to_index(position)]));
                high = std::max(high, double(of_cpu[to_index(position)]));
            }
            if (!apart.empty()) worst.gap = std::max(worst.gap, (high - low) / largest);
        }
    }
    return worst;
}

const std::vector<std::string> kPresets = {
    "full",
    "window:budget=20",
    "sink:budget=20",
    "h2o:budget=20",
    "tova:budget=20",
    "keyformer:budget=20",
    "keyformer:budget=24,noise=gaussian,draw=row,seed=4",
    "a2sf:budget=20",
    "h2o:budget=24,scope=layer",
};

struct Case {
    const char* name;
    std::function<void(AnyShape&)> change;
    int n = 150;
    const char* kv = "full";
};
const Case kCases[] = {
    {"grouped queries", [](AnyShape&) {}},
    {"one KV head", [](AnyShape& s) { s.config.n_kv_heads = 1; }},
    {"heads of their own", [](AnyShape& s) { s.config.n_kv_heads = 4, s.biases = true; }},
    {"ALiBi", [](AnyShape& s) { s.config.positions = keyhole::PositionKind::alibi; }, 131},
    {"a window of 33 in one layer",
     [](AnyShape& s) {
         s.config.window = {0, 33};
     },
     200},
    {"a window of 9",
     [](AnyShape& s) {
         s.config.window = {9, 9};
     }},
    {"another scale, heads of 80",
     [](AnyShape& s) { s.config.attention_scale = 0.21f, s.config.head_dim = s.config.rotary.dims = 80; },
     70},
    {"heads of 144", [](AnyShape& s) { s.config.head_dim = s.config.rotary.dims = 144; }, 66},
    {"one token", [](AnyShape&) {}, 1},
    {"layers that borrow", [](AnyShape& s) { s.config.n_layers = 3, s.config.n_kv_heads = 4; }, 150,
     "full:kv=(mlkv:m=1,g=2)"},
    {"layers that borrow keys before rotation",
     [](AnyShape& s) { s.config.n_layers = 3, s.config.n_kv_heads = 4; }, 150,
     "full:kv=(mlkv:m=1,g=1),merge=released"},
};

// Inputs of products, queries, keys, values and probabilities are rounded to 11 bits (f16) or 8 (bf16); on
// the CPU they are floats. Margins, as shares of the largest value, are about three times the worst that was
// seen: logits 2.4e-3 and 2.4e-2, attention 4.5e-3 and 3.4e-2, scores 7.4e-3 and 5.2e-2. Where different
// tokens were kept, their scores were at most 5.5e-4 and 5.5e-3 apart.
TEST(CudaPrompt, FollowsTheCpu) {
    for (const DType type : {DType::f16, DType::bf16})
        for (const Case& of : kCases) {
            SCOPED_TRACE(fmt::format("{}, {}", of.name, type == DType::f16 ? "f16" : "bf16"));
            AnyShape shape = shape_of_heads(type);
            of.change(shape);
            const auto executor = std::make_shared<Watched>();
            const Differences worst = compare(shape, kPresets, of.n, executor, of.kv);
            const double unit = type == DType::f16 ? 1 : 8;
            EXPECT_LT(worst.logits, unit * 8e-3);
            EXPECT_LT(worst.attention, unit * 1.5e-2);
            EXPECT_LT(worst.scores, unit * 2.5e-2);
            EXPECT_LT(worst.gap, unit * 2e-3);
            const int n_layers = shape.config.n_layers;
            EXPECT_EQ(executor->n_of("PromptAttend"), n_layers);
            EXPECT_EQ(executor->n_of("PromptColumns"), n_layers);
            EXPECT_EQ(executor->n_of("FoldTile"), 0);
        }
}

/// Runs a prompt on the host executor alone.
struct OneLane {
    std::shared_ptr<Watched> executor = std::make_shared<Watched>();
    std::vector<float> logits;
    std::vector<std::vector<std::int32_t>> kept;

    OneLane(const AnyShape& shape, const std::string& spec, int n, const keyhole::RowRequest& requested,
            const cuda::ProductOptions& products = {}) {
        const auto model = any_model(shape);
        const Prompt prompt(keyhole::make_cuda_backend(model, executor, products), model, model, {spec},
                            random_tokens(n, 3), requested);
        logits = prompt.out[0].next_logits;
        for (int g = 0; g < model->layout().n_kv_heads(); ++g)
            kept.push_back(prompt.caches[0]->stored_positions(g));
    }
    bool is_fused() const {
        EXPECT_NE(executor->n_of("PromptAttend") > 0, executor->n_of("FoldTile") > 0);
        return executor->n_of("PromptAttend") > 0;
    }
};

/// Decisions on the tokens of prompts, each to keep it or not, and how many differ from the CPU's.
struct Decisions {
    std::int64_t n = 0, n_wrong = 0;
};

/// Runs prompts until so many decisions are made.
Decisions decide(bool weights_precision, std::int64_t n_wanted) {
    constexpr int kTokens = 300;
    const std::vector<std::string> specs = {"h2o:budget=20%", "tova:budget=20%", "keyformer:budget=20%",
                                            "a2sf:budget=20%,recent=4"};
    const auto model = any_model(shape_of_heads(DType::f16));
    Decisions all;
    for (unsigned seed = 1; all.n < n_wanted; ++seed) {
        const std::vector<int> tokens = random_tokens(kTokens, seed);
        const Prompt cpu(keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, nullptr), model,
                         model, specs, tokens, {}),
            device(keyhole::make_cuda_backend(model, cuda::make_host_executor(seed),
                                              {.weights_precision = weights_precision}),
                   model, model, specs, tokens, {});
        for (std::size_t lane = 0; lane < specs.size(); ++lane)
            for (int g = 0; g < model->layout().n_kv_heads(); ++g) {
                const auto kept = cpu.caches[lane]->stored_positions(g),
                           on_device = device.caches[lane]->stored_positions(g);
                EXPECT_EQ(kept.size(), on_device.size());
                std::vector<std::int32_t> apart;
                std::set_difference(kept.begin(), kept.end(), on_device.begin(), on_device.end(),
                                    std::back_inserter(apart));
                all.n += kTokens;
                all.n_wrong += static_cast<std::int64_t>(apart.size());
            }
    }
    return all;
}

// With KEYHOLE_TEST_DECISIONS=1000000 in the environment for as many: tests/bench/results has that run.
TEST(CudaPrompt, InFloatsTheKeptTokensAreThoseOfTheCpu) {
    const char* wanted = std::getenv("KEYHOLE_TEST_DECISIONS");
    const Decisions in_floats = decide(false, wanted != nullptr ? std::atoll(wanted) : 8'000);
    EXPECT_EQ(in_floats.n_wrong, 0) << "of " << in_floats.n;
    RecordProperty("decisions", std::to_string(in_floats.n));
    if (wanted != nullptr)
        fmt::print("{} of {} decisions differ in floats\n", in_floats.n_wrong, in_floats.n);
    const Decisions rounded = decide(true, wanted != nullptr ? in_floats.n : 8'000);
    EXPECT_GT(rounded.n_wrong, 0) << "nothing was rounded";
    EXPECT_LT(double(rounded.n_wrong) / double(rounded.n), 0.01);
    if (wanted != nullptr) fmt::print("{} of {} decisions differ in f16\n", rounded.n_wrong, rounded.n);
}

// Allocating and freeing wait for the device. A lane's cache is one piece of memory a layer, which stays. A
// prompt's own buffers serve all layers and lanes.
TEST(CudaPrompt, ALayerAllocatesNothingButCaches) {
    const auto allocations = [](int n_layers, const std::vector<std::string>& specs, bool weights_precision) {
        AnyShape shape = shape_of_heads(DType::f16);
        shape.config.n_layers = n_layers;
        const auto model = any_model(shape);
        const auto executor = std::make_shared<FailingExecutor>();
        auto backend = keyhole::make_cuda_backend(model, executor, {.weights_precision = weights_precision});
        const int before = executor->n_allocations;
        const Prompt prompt(std::move(backend), model, model, specs, random_tokens(40, 3), {});
        return executor->n_allocations - before;
    };
    const std::vector<std::string> specs = {"h2o:budget=9", "keyformer:budget=9", "full"};
    for (const bool weights_precision : {true, false})
        EXPECT_EQ(allocations(6, specs, weights_precision) - allocations(2, specs, weights_precision),
                  4 * static_cast<int>(specs.size()))
            << weights_precision;
}

TEST(CudaPrompt, ABackendSaysInWhatItComputes) {
    const auto model = any_model(shape_of_heads(DType::f16));
    const auto of = [&](bool weights_precision) {
        return keyhole::make_cuda_backend(model, cuda::make_host_executor(),
                                          {.weights_precision = weights_precision});
    };
    EXPECT_EQ(of(true)->name(), "cuda, host, thread by thread, f16 precision");
    EXPECT_NE(of(true)->precision_text().find("prompts are computed in f16"), std::string::npos);
    EXPECT_NE(of(true)->precision_text().find("--precision float"), std::string::npos);
    EXPECT_EQ(of(false)->name(), "cuda, host, thread by thread");
    EXPECT_EQ(of(false)->precision_text(), "");
}

TEST(CudaPrompt, TilesRemainWhereTheyAreNeeded) {
    const auto fused = [](const std::function<void(AnyShape&)>& change, const std::string& spec,
                          const cuda::ProductOptions& products = {}) {
        AnyShape shape = shape_of_heads(DType::f16);
        change(shape);
        return OneLane(shape, spec, 20, {}, products).is_fused();
    };
    const auto same = [](AnyShape&) {};
    EXPECT_TRUE(fused(same, "h2o:budget=9"));
    EXPECT_TRUE(fused([](AnyShape& s) { s.dtype = DType::bf16; }, "keyformer:budget=9"));
    EXPECT_FALSE(fused([](AnyShape& s) { s.dtype = DType::f32; }, "h2o:budget=9"));
    EXPECT_FALSE(fused(same, "h2o:budget=9", {.weights_precision = false}));
    EXPECT_FALSE(fused(same, "h2o:budget=9,score_dtype=bf16"));
    EXPECT_FALSE(fused([](AnyShape& s) { s.config.head_dim = s.config.rotary.dims = 24; }, "h2o:budget=9"));
}

// What a lane wants of the last row is computed besides.
TEST(CudaPrompt, RecordingChangesNoBit) {
    const AnyShape shape = shape_of_heads(DType::f16);
    for (const char* spec : {"h2o:budget=20", "keyformer:budget=20"}) {
        const OneLane with(shape, spec, 90, kAllOfARow), without(shape, spec, 90, {});
        EXPECT_EQ(with.logits, without.logits);
        EXPECT_EQ(with.kept, without.kept);
        EXPECT_EQ(with.executor->n_of("SoftmaxTile") > 0, true);
        EXPECT_EQ(without.executor->n_of("SoftmaxTile"), 0);
    }
}

// Twice the tokens take at most twice the bytes, allocation by allocation.
TEST(CudaPrompt, NoAllocationGrowsWithTheSquareOfTheTokens) {
    AnyShape shape = shape_of_heads(DType::f16);
    shape.config.window = {0, 33};
    for (const char* spec : {"full", "keyformer:budget=20", "a2sf:budget=20"}) {
        const auto sizes = [&](int n) {
            std::vector<std::size_t> all = OneLane(shape, spec, n, kAllOfARow).executor->sizes;
            std::sort(all.begin(), all.end(), std::greater());
            return all;
        };
        const std::vector<std::size_t> one = sizes(100), two = sizes(200), four = sizes(400);
        ASSERT_EQ(one.size(), two.size());
        ASSERT_EQ(two.size(), four.size());
        for (std::size_t i = 0; i < one.size(); ++i) {
            EXPECT_LE(two[i], 2 * one[i]) << spec << " " << i;
            EXPECT_LE(four[i], 2 * two[i]) << spec << " " << i;
        }
    }
}

}  // namespace
}  // namespace reference::test_cuda_prompt
