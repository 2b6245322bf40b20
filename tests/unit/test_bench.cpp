// How a bench computes its figures from times and bytes, on the CPU backend and on the CUDA backend on the
// host; and the papers' tables.
#include "engine/base/index.h"
#include "engine/bench/bench.h"

#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/device.h"
#include "engine/base/error.h"
#include "engine/bench/papers.h"
#include "engine/bench/wide_read.h"
#include "engine/device/make_backend.h"
#include "engine/model/seeded_blocks.h"
#include "engine/policy/lane_spec.h"

#include "tests/reference/any_model.h"
#include "tests/reference/tiny_shape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace keyhole::test_bench {
namespace {

ModelShape tiny() {
    return reference::tiny_shape(304);
}

ContenderSetup setup(const std::string& spec, int n_lanes, int context) {
    ContenderSetup out;
    out.name = spec;
    out.policies.assign(to_index(n_lanes), resolve(parse_lane_spec(spec).policy, context, 20));
    out.context = context;
    return out;
}

/// A machine that reads many bytes more slowly than few.
class Falling final : public Bandwidth {
  public:
    static double of(std::int64_t n_bytes) { return 1e9 / static_cast<double>(n_bytes); }
    std::string what() const override { return "falling"; }
    double measure(std::int64_t n_bytes) override { return of(n_bytes); }
};

void runs_on(Backend& backend, const Model& model) {
    Contender full(model, backend, setup("full", 2, 24)), small(model, backend, setup("h2o:budget=8", 3, 24));
    Contender* const both[] = {&full, &small};
    double ms = 1;
    full.clock = small.clock = [&](const std::function<void()>& work) {
        work();
        return ms++;  // 1 2 | 3 4 || 5 6 | 7 8 || ...
    };
    Falling bandwidth;
    double shown = 0;
    BenchOptions options;
    options.n_steps = 6;
    options.n_rounds = 3;
    options.progress = [&](double share) { shown = share; };
    const BenchReport report = run_bench(model, backend, both, bandwidth, options);
    ASSERT_EQ(report.lines.size(), 2u);
    const BenchLine &a = report.lines[0], &b = report.lines[1];
    // Two warm-up steps each take 1 to 4 ms. Then full has 5 6, 9 10, 13 14 and the other 7 8, 11 12, 15 16.
    EXPECT_DOUBLE_EQ(a.ms_per_step, 9.5);
    EXPECT_DOUBLE_EQ(b.ms_per_step, 11.5);
    EXPECT_DOUBLE_EQ(a.tokens_per_s, 2e3 / 9.5);
    EXPECT_DOUBLE_EQ(b.p99_over_p50, 16 / 11.5);
    EXPECT_DOUBLE_EQ(shown, 1);
    const std::int64_t of_token =
        std::int64_t{2} * 2 * 2 * 16 * 2;  // K and V, layers, heads, dimensions, bytes of f16
    EXPECT_EQ(a.kv_bytes, 2 * (24 + 8) * of_token);
    EXPECT_EQ(b.kv_bytes, 3 * 8 * of_token);
    const std::int64_t weights = seeded_weight_bytes(tiny(), DType::f16) - 304 * 64 * 2;
    EXPECT_EQ(report.weight_bytes, weights);
    EXPECT_EQ(a.bytes_per_step, weights + a.kv_bytes);
    EXPECT_DOUBLE_EQ(a.gb_per_s, 1e-6 * static_cast<double>(a.bytes_per_step) / 9.5);
    // The best is the one after the first round, when `full` held four rows less.
    EXPECT_DOUBLE_EQ(a.bandwidth, Falling::of(a.bytes_per_step - 2 * 4 * of_token));
    EXPECT_DOUBLE_EQ(b.bandwidth, Falling::of(b.bytes_per_step));
    for (const BenchLine& line : {a, b}) {
        EXPECT_DOUBLE_EQ(line.share_of_bandwidth, line.gb_per_s / line.bandwidth);
    }
    const SpeedUp up = speed_up(b, a);
    EXPECT_DOUBLE_EQ(up.measured, (3 / 11.5) / (2 / 9.5));
    EXPECT_DOUBLE_EQ(up.by_bytes, (static_cast<double>(weights + a.kv_bytes) / 2) /
                                      (static_cast<double>(weights + b.kv_bytes) / 3));
}

TEST(Bench, CountsTimesAndBytesOnTheCpu) {
    const auto model = make_seeded_model(tiny(), DType::f16);
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    runs_on(*backend, *model);
}

TEST(Bench, CountsTimesAndBytesOnTheCudaBackendsHost) {
    const auto model = make_seeded_model(tiny(), DType::f16, 1, SeededStorage::unmade);
    const auto backend = make_cuda_backend(model, cuda::make_host_executor());
    runs_on(*backend, *model);
}

TEST(Bench, QuantisedShapesHaveTheSpreadOfFloats) {
    ModelShape shape = tiny();
    shape.config.d_model = 256;  // a block of the K types; rows of `down` are no whole number of blocks
    for (const DType type : {DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k}) {
        SCOPED_TRACE(dtype_name(type));
        const auto model = make_seeded_model(shape, type);
        const LayerWeights& layer = model->weights().layers[1];
        EXPECT_EQ(layer.mlp_norm.dtype, DType::f32);
        EXPECT_EQ(layer.down.dtype, 96 % block_elements(type) == 0 ? type : DType::f32);
        ASSERT_EQ(layer.up.dtype, type);
        const std::int64_t n = layer.up.rows * layer.up.cols;
        std::vector<float> values(to_index(n));
        widen_stored(type, layer.up.data, n, values.data());
        double sum = 0, squares = 0;
        for (const double value : values) sum += value, squares += value * value;
        const auto count = static_cast<double>(n);
        EXPECT_NEAR(sum / count, 0, 0.15 / 16);  // codes of q4_0 are -8 to 7
        EXPECT_NEAR(std::sqrt(squares / count), 1.0 / 16, 0.1 / 16);
        EXPECT_NE(std::memcmp(layer.up.data, layer.gate.data, stored_bytes(type, n)), 0);
        const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
        Contender lanes(*model, *backend, setup("h2o:budget=8", 2, 24));
        lanes.decode(2);
    }
}

TEST(Bench, BlocksAreFunctionsOfTheirPlace) {
    const SeededWeight weight{3, 5, 0.2f};
    std::vector<std::byte> all(10 * block_bytes(DType::q4_k)), some(4 * block_bytes(DType::q4_k));
    seeded_blocks(DType::q4_k, weight, 0, 10, all.data());
    seeded_blocks(DType::q4_k, weight, 3, 4, some.data());
    EXPECT_EQ(std::memcmp(all.data() + 3 * block_bytes(DType::q4_k), some.data(), some.size()), 0);
    EXPECT_TRUE(has_seeded_blocks(DType::q6_k));
    EXPECT_FALSE(has_seeded_blocks(DType::mxfp4));
    EXPECT_FALSE(has_seeded_blocks(DType::f16));
}

TEST(Bench, SaysWhereTheTimeGoes) {
    const auto model = make_seeded_model(tiny(), DType::f16);
    const auto backend = make_cuda_backend(model, cuda::make_host_executor());
    Contender lanes(*model, *backend, setup("h2o:budget=8", 2, 24));
    Contender* const all[] = {&lanes};
    Falling bandwidth;
    BenchOptions options;
    options.n_steps = 4;
    options.n_rounds = 2;
    options.parts = true;
    const BenchReport report = run_bench(*model, *backend, all, bandwidth, options);
    const BenchLine& line = report.lines[0];
    ASSERT_TRUE(line.has_parts);
    const std::vector<PartRead> reads = part_reads(line);
    ASSERT_EQ(reads.size(), 2u);
    EXPECT_EQ(reads[0].n_bytes, read_weight_bytes(*model));
    EXPECT_EQ(reads[1].n_bytes, line.kv_bytes);
    EXPECT_DOUBLE_EQ(reads[0].gb_per_s, 1e-9 * static_cast<double>(reads[0].n_bytes) * 4 / line.parts.linear);
    EXPECT_NEAR(reads[1].share_of_bandwidth, reads[1].gb_per_s / line.bandwidth, 1e-12);
    EXPECT_TRUE(part_reads(BenchLine()).empty());
    EXPECT_EQ(line.parts.n_steps, 4);
    for (const double seconds :
         {line.parts.linear, line.parts.attention, line.parts.scoring, line.parts.eviction, line.parts.rest})
        EXPECT_GT(seconds, 0);
    lanes.decode(1);
    EXPECT_EQ(line.parts.n_steps, 4);
}

TEST(Bench, AFollowerLosesTheSameAndGivesTheSameBits) {
    const auto model = make_seeded_model(tiny(), DType::f32);
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    ContenderSetup with = setup("h2o:budget=16", 2, 16);
    with.keeps = true;
    Contender original(*model, *backend, with);
    ContenderSetup without = with;
    without.follows = &original;
    Contender follower(*model, *backend, without);
    original.decode(5);
    follower.decode(5);
    EXPECT_EQ(original.digests(), follower.digests());
    EXPECT_EQ(original.digests().size(), 10u);
    EXPECT_EQ(original.read_bytes(), follower.read_bytes());
}

// A step of quest reads the bounds of all pages, and the pages that its heads choose.
TEST(Bench, QuestReadsThePagesThatItChooses) {
    const auto model = make_seeded_model(tiny(), DType::f32);
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    const auto read_of = [&](const char* spec) {
        Contender lane(*model, *backend, setup(spec, 1, 200));
        lane.decode(2);
        return lane.read_bytes();
    };
    const ModelConfig& c = model->config();
    const KvLayout& layout = model->layout();
    const std::int64_t of_token = std::int64_t{2} * c.head_dim * 4, full = read_of("full");
    EXPECT_EQ(full, layout.n_kv_heads() * 202 * of_token);
    const ResolvedPolicy quest = resolve(parse_lane_spec("quest:read=32").policy, 200, 8);
    std::int64_t expected = full;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const auto& readers = layout.kv_head(g).readers;
        if (!quest.at(readers.front().layer, readers.front().head).reads_pages()) continue;
        const std::int64_t chosen = std::min<std::int64_t>(32 * std::ssize(readers), 202);
        expected += 13 * std::int64_t{2} * c.head_dim * 4 - (202 - chosen) * of_token;
    }
    EXPECT_LT(expected, full);
    EXPECT_EQ(read_of("quest:read=32"), expected);
    EXPECT_EQ(read_of("quest:read=208"), full) << "13 pages: all";
}

TEST(Bench, AFollowerOfAnEvictedPromptIsRefused) {
    const auto model = make_seeded_model(tiny(), DType::f32);
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    Contender original(*model, *backend, setup("h2o:budget=8", 1, 16));
    ContenderSetup without = setup("h2o:budget=8", 1, 16);
    without.follows = &original;
    EXPECT_THROW(Contender(*model, *backend, without), Error);
}

TEST(Bench, BandwidthIsThatOfBytesMoved) {
    const auto host = host_read(1);
    for (const std::int64_t n_bytes : {1, 8 << 20, 2 << 20}) {
        EXPECT_GT(host->measure(n_bytes), 0.05);
        EXPECT_LT(host->measure(n_bytes), 2000);
    }
    EXPECT_EQ(host->what(), "bare read of as many bytes by 1 thread");
    const auto device = device_copy(cuda::make_cuda_device(cuda::make_host_executor()), 8 << 20);
    EXPECT_GT(device->measure(0), 0.05);
}

TEST(Papers, EveryTableHasLinesThatParse) {
    EXPECT_EQ(paper_names().size(), 5u);
    for (const std::string_view name : paper_names()) {
        const PaperRun run = paper_run(name);
        EXPECT_EQ(run.name, name);
        shape_of(run.shape);
        for (const PaperGroup& group : run.groups) {
            ASSERT_GE(group.lines.size(), 2u);
            EXPECT_EQ(group.lines.front().lane, "full") << name;
            for (const PaperLine& line : group.lines)
                EXPECT_NO_THROW(parse_lane_spec(line.lane)) << line.lane;
        }
    }
    EXPECT_THROW(paper_run("keyformer-table9"), Error);
}

TEST(Papers, ScalingSaysWhatItDid) {
    PaperRun run = paper_run("tova-table1");
    ModelShape shape = shape_of(run.shape);
    EXPECT_EQ(scale_down(run, shape, {}), "");
    EXPECT_EQ(run.groups[0].lines[1].lane, "tova:budget=1536");
    EXPECT_EQ(scale_down(run, shape, {16, 4, 2}),
              "contexts and budgets 1/16, batches 1/4, at least 1, 2 of 32 layers");
    EXPECT_EQ(run.groups[0].lines[1].lane, "tova:budget=96");
    EXPECT_EQ(run.groups[0].lines[1].n_lanes, 4);
    EXPECT_EQ(run.groups[0].lines[0].context, 128);
    EXPECT_EQ(shape.config.n_layers, 2);
}

/// Pythia-160M with all its layers and heads, but narrow.
ModelShape narrow_pythia() {
    ModelShape shape = shape_of("pythia-160m");
    shape.config.head_dim = 8;
    shape.config.d_model = shape.config.d_ff = 96;
    shape.config.n_vocab = 300;
    shape.config.rotary.dims = 4;
    shape.config.rotary.inverse_frequency.resize(2);
    return shape;
}

// The number in the label counts all KV heads. Both backends store exactly these.
TEST(Papers, EverySharingOfMlkvRunsOnBothBackends) {
    const PaperRun run = paper_run("mlkv-figure5");
    for (const PaperLine& line : run.groups[0].lines) {
        SCOPED_TRACE(line.label);
        const ModelShape shape = with_kv_heads(narrow_pythia(), line);
        const auto model = make_seeded_model(shape, DType::f32);
        const int n_heads = std::stoi(line.label.substr(line.label.find_first_of("0123456789")));
        ASSERT_EQ(model->layout().n_kv_heads(), n_heads);
        std::vector<std::vector<float>> logits;
        for (const bool is_cuda : {false, true}) {
            const auto backend = is_cuda ? make_cuda_backend(model, cuda::make_host_executor())
                                         : make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
            Contender lanes(*model, *backend, setup("full", 2, 12));
            lanes.decode(3);
            EXPECT_EQ(lanes.read_bytes(), 2 * 15 * std::int64_t{2} * n_heads * 8 * 4);
            const ResolvedPolicy full = resolve(parse_lane_spec("full").policy, 4, 4);
            const auto cache = backend->make_cache(full);
            RowOutput out;
            const LanePrefill lane{cache.get(), {}, &out};
            backend->prefill(std::vector<int>{5, 6, 7, 8}, {&lane, 1}, nullptr, {});
            const LaneStep step{cache.get(), 9, 4, {}, &out};
            backend->step({&step, 1});
            logits.push_back(out.next_logits);
        }
        for (std::size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[0][i], logits[1][i], 1e-4);
    }
}

/// Named as the tests that run with every instruction set.
TEST(Kernels, ABareReadReadsEveryWord) {
    std::vector<std::uint64_t> words(2100);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = 0x9e3779b97f4a7c15u * (i + 1);
    for (const std::size_t first : {0, 1, 3})
        for (const std::size_t n : {0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1024, 2000, 2097}) {
            const std::span<const std::uint64_t> some = std::span(words).subspan(first, n);
            EXPECT_EQ(wide_sum(some), std::accumulate(some.begin(), some.end(), std::uint64_t{0}))
                << n << " words from " << first;
        }
}

// Two layers of five experts, each three matrices of 24 by 32 floats; a token takes two of them.
TEST(Bench, AStepReadsTheExpertsOfItsToken) {
    reference::AnyShape shape = reference::any_shape();
    shape.config.n_experts = shape.config.n_experts_used = 5;
    shape.config.d_expert = 24;
    const std::int64_t all = read_weight_bytes(*reference::any_model(shape));
    shape.config.n_experts_used = 2;
    EXPECT_EQ(all - read_weight_bytes(*reference::any_model(shape)), 2 * 3 * 3 * 24 * 32 * 4);
}

}  // namespace
}  // namespace keyhole::test_bench
