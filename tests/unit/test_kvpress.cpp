// What selections rank and what exports of q, k and v hold, against transformers and the scorers of kvpress
// on the same prompt (tests/fixtures/make_kvpress.py): field's policies 3 to 5, 9, 10 and 12, as one function
// of kvpress each.
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/model/safetensors.h"
#include "engine/policy/calibration.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/prefill_sink.h"
#include "engine/trace/record.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace keyhole::test_kvpress {
namespace {

const std::filesystem::path kFolder = reference::source_folder() / "tests/fixtures";

struct Array {
    std::vector<std::int64_t> shape;
    std::vector<float> values;

    float at(std::initializer_list<int> index) const {
        std::int64_t place = 0;
        std::size_t i = 0;
        for (const int x : index) place = place * shape[i++] + x;
        return values.at(to_index(place));
    }
};

Array array_of(const SafetensorsFile& file, const std::string& name) {
    const StoredTensor tensor = file.tensor(name);
    Array out{tensor.shape, {}};
    std::int64_t n = 1;
    for (const std::int64_t extent : tensor.shape) n *= extent;
    out.values.resize(to_index(n));
    std::memcpy(out.values.data(), tensor.data, out.values.size() * sizeof(float));
    return out;
}

std::vector<int> tokens_of(const SafetensorsFile& file) {
    std::vector<int> tokens;
    for (const float id : array_of(file, "tokens").values) tokens.push_back(static_cast<int>(id));
    return tokens;
}

/// Keeps the prompt's vectors, by kind, layer and head: [n, head_dim].
struct Inputs final : PrefillSink {
    std::map<std::tuple<InputKind, int, int>, std::vector<float>> of;
    std::vector<QueryMoments> moments;
    RowRequest requested() const override {
        RowRequest all;
        all.inputs = true;
        return all;
    }
    void inputs(const InputTile& tile) override {
        std::vector<float>& to = of[{tile.kind, tile.layer, tile.head}];
        std::vector<const float*> rows;
        for (int row = 0; row < tile.n_rows; ++row) {
            const float* from = tile.values + row * tile.stride;
            to.insert(to.end(), from, from + tile.head_dim);
            if (row >= 4) rows.push_back(from);
        }
        if (tile.kind == InputKind::raw_q) moments.push_back(query_moments(rows, tile.head_dim, tile.rotary));
    }
};

struct Fixture {
    explicit Fixture(bool on_device = false) {
        std::string notice;
        backend = on_device ? reference::cuda_backend(model, 1, {.weights_precision = false})
                            : make_backend(model, {BackendChoice::cpu, 2, 0}, &notice);
    }
    SafetensorsFile file{kFolder / "kvpress.safetensors"};
    std::shared_ptr<const Model> model = load_model(kFolder / "llama_gqa");
    std::vector<int> tokens = tokens_of(file);
    std::unique_ptr<Backend> backend;

    std::unique_ptr<KvCache> cache(const std::string& spec) const {
        return backend->make_cache(resolve(parse_lane_spec(spec).policy, static_cast<int>(tokens.size()), 8,
                                           head_grid(model->layout())),
                                   nullptr);
    }
};

struct NamedInput {
    const char* name;
    InputKind kind;
    bool of_queries;
    std::vector<float> RowInputs::*row;
};
const std::vector<NamedInput> kInputs = {{"q", InputKind::q, true, &RowInputs::q},
                                         {"q0", InputKind::raw_q, true, &RowInputs::raw_q},
                                         {"k", InputKind::k, false, &RowInputs::k},
                                         {"k0", InputKind::raw_k, false, &RowInputs::raw_k},
                                         {"v", InputKind::v, false, &RowInputs::v}};

void expect_inputs_of_transformers(const Fixture& f) {
    const int n = static_cast<int>(f.tokens.size()), d = f.model->config().head_dim;
    // The prompt in one piece, and the rows of another lane that reads it token by token.
    Inputs tiles;
    RowOutput out;
    const std::unique_ptr<KvCache> whole = f.cache("full:kv_dtype=f32"),
                                   by_row = f.cache("full:kv_dtype=f32");
    const LanePrefill prompt{whole.get(), {}, &out};
    f.backend->prefill(f.tokens, {&prompt, 1}, &tiles, {});
    std::vector<RowOutput> rows(to_index(n));
    for (int row = 0; row < n; ++row) {
        RowRequest inputs;
        inputs.inputs = true;
        const LaneStep step{by_row.get(), f.tokens[to_index(row)], row, inputs, &rows[to_index(row)]};
        f.backend->step({&step, 1});
    }
    for (const NamedInput& input : kInputs) {
        const Array expected = array_of(f.file, input.name);
        const auto n_layers = static_cast<int>(expected.shape[0]),
                   n_heads = static_cast<int>(expected.shape[1]);
        ASSERT_EQ(n_layers, f.model->config().n_layers);
        ASSERT_EQ(n_heads, input.of_queries ? f.model->config().n_heads : f.model->config().n_kv_heads);
        for (int l = 0; l < n_layers; ++l)
            for (int h = 0; h < n_heads; ++h) {
                const std::vector<float>& tile = tiles.of.at({input.kind, l, h});
                ASSERT_EQ(tile.size(), to_index(n * d));
                for (int row = 0; row < n; ++row)
                    for (int c = 0; c < d; ++c) {
                        const float value = expected.at({l, h, row, c});
                        ASSERT_NEAR(tile[to_index(row * d + c)], value, 1e-4f)
                            << input.name << " of the prompt, layer " << l << ", head " << h << ", row "
                            << row;
                        ASSERT_NEAR(
                            (rows[to_index(row)].inputs.*input.row)[to_index((l * n_heads + h) * d + c)],
                            value, 1e-4f)
                            << input.name << " of a row, layer " << l << ", head " << h << ", row " << row;
                    }
            }
    }
    EXPECT_TRUE(out.inputs.q.empty()) << "nobody asked for those of the prompt's last row";
}

TEST(Kvpress, QueriesKeysAndValuesAreThoseOfTransformers) {
    for (const bool on_device : {false, true}) {
        SCOPED_TRACE(on_device ? "on a device" : "on the CPU");
        expect_inputs_of_transformers(Fixture(on_device));
    }
}

TEST(Kvpress, ScorersRankAlike) {
    const Fixture f;
    const int n = static_cast<int>(f.tokens.size());
    struct Pair {
        const char* press;
        const char* spec;
    };
    const std::vector<Pair> pairs = {
        {"knorm", "knorm:budget=30"},
        {"keydiff", "keydiff:budget=30,prefill=oneshot,evict=prompt"},
        {"tova", "tova:budget=30"},
        {"observed", "key:budget=30,score=(s+p),choose=(s/(age+1))"},
        {"snapkv-16-5", "snapkv:budget=30,window=16,recent=16,kernel=avg:5"},
        {"snapkv-8-7", "snapkv:budget=30,window=8,recent=8,kernel=avg:7"},
        {"snapkv-32-1", "snapkv:budget=40,window=32,recent=32,kernel=none"},
        {"lagkv-16", "lagkv:budget=30,window=16,evict=prompt"},
        {"lagkv-9", "lagkv:budget=30,window=9,sinks=2,evict=prompt"},
        {"expected", "expected:budget=30,alloc=uniform"},
        {"expected-64", "expected:budget=30,alloc=uniform,ahead=64,choose=(expected*vnorm)"},
        {"expected-bare", "expected:budget=30,alloc=uniform,choose=(expected)"},
        {"wvnorm", "key:budget=30,choose=(wvnorm)"},
    };
    std::vector<std::string> specs;
    for (const Pair& pair : pairs) specs.push_back(fmt::format("{},kv_dtype=f32", pair.spec));
    const reference::LaneRows rows = reference::run_engine(f.model, specs, f.tokens, {});
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const Array expected = array_of(f.file, fmt::format("score/{}", pairs[i].press));
        const RowValues& values = rows[i][0].values;
        const auto n_kv = static_cast<int>(expected.shape[1]);
        double largest = 0;
        for (const float score : expected.values)
            if (!std::isnan(score)) largest = std::max(largest, std::abs(double{score}));
        int n_compared = 0;
        for (int l = 0; l < f.model->config().n_layers; ++l)
            for (int g = 0; g < n_kv; ++g)
                for (int p = 0; p < n; ++p) {
                    const float score = expected.at({l, g, p});
                    if (std::isnan(score)) continue;
                    // Both add floats, each in its own order; with AVX2 they differ by more than 3e-5.
                    ASSERT_NEAR(values.scores.at(to_index(values.offset[to_index(l * n_kv + g)] + p)), score,
                                4e-5 * largest)
                        << pairs[i].press << ", layer " << l << ", KV head " << g << ", token " << p;
                    ++n_compared;
                }
        EXPECT_GE(n_compared, 3 * 2 * 40) << pairs[i].press;
    }
}

/// Returns what a lane keeps of n tokens in a KV head after these rows.
std::vector<int> kept_of(const std::vector<RowOutput>& rows, int kv_head, int n) {
    std::set<int> kept;
    for (int p = 0; p < n; ++p) kept.insert(p);
    for (const RowOutput& row : rows)
        for (const Eviction& gone : row.evictions)
            if (gone.kv_head == kv_head) kept.erase(gone.position);
    return {kept.begin(), kept.end()};
}

/// Compares what a lane keeps in the first layers with what a press of kvpress keeps.
void expect_set(const Fixture& f, const char* press, const std::vector<RowOutput>& rows, int n_layers) {
    const Array expected = array_of(f.file, fmt::format("set/{}", press));
    const auto n_kv = static_cast<int>(expected.shape[1]), n = static_cast<int>(expected.shape[2]);
    ASSERT_EQ(n, static_cast<int>(f.tokens.size()));
    for (int l = 0; l < n_layers; ++l)
        for (int g = 0; g < n_kv; ++g) {
            std::vector<int> kept;
            for (int p = 0; p < n; ++p)
                if (expected.at({l, g, p}) == 1) kept.push_back(p);
            ASSERT_GE(kept.size(), 9u);
            EXPECT_EQ(kept_of(rows, l * n_kv + g, n), kept) << press << ", layer " << l << ", KV head " << g;
        }
}

// kvpress's presses that choose sets. Shared budgets have no safeguard, which kvpress counts in another way
// (field, section 7); the sizes of the pyramid's layers are given, since kvpress's are others (section 6).
TEST(Kvpress, SetsAreAlike) {
    const Fixture f;
    const std::vector<std::pair<const char*, const char*>> pairs = {
        {"adakv-knorm", "knorm:budget=36,alloc=adaptive,floor=0%"},
        {"adakv-snapkv", "snapkv:budget=36,window=8,recent=8,kernel=avg:5,alloc=adaptive,floor=0%"},
        {"adakv-expected", "expected:budget=36,alloc=adaptive,floor=0%"},
        {"pyramidkv", "snapkv:budget=36,window=8,recent=8,kernel=avg:5,budget@L0=63,budget@L2=9"},
        {"chunk-knorm-20", "knorm:budget=40,unit=20,scope=layer"},
        {"chunk-keydiff-9", "keydiff:budget=36,unit=9,scope=layer,prefill=oneshot,evict=prompt"},
    };
    std::vector<std::string> specs;
    for (const auto& [press, spec] : pairs) specs.push_back(fmt::format("{},kv_dtype=f32", spec));
    const reference::LaneRows rows = reference::run_engine(f.model, specs, f.tokens, {});
    for (std::size_t i = 0; i < pairs.size(); ++i) expect_set(f, pairs[i].first, rows[i], 3);
}

// KeyDiff in blocks of 12 tokens, from the budget on. kvpress reads the prompt whole, so that its sets are a
// policy's only where keys do not depend on what left: in the first layer (field, section 4).
TEST(Kvpress, BlocksOfKeyDiffAreAlikeInTheFirstLayer) {
    const Fixture f;
    const std::span<const int> all(f.tokens);
    const std::vector<std::string> specs = {"keydiff:budget=36,every=12,kv_dtype=f32"};
    expect_set(f, "block-keydiff-12",
               reference::run_engine(f.model, specs, all.first(36), all.subspan(36))[0], 1);
}

// Statistics of the lane's own prompt, from a file, rank as the lane's own do.
TEST(Kvpress, ACalibrationOfTheSameTextRanksAlike) {
    const Fixture f;
    Inputs tiles;
    RowOutput out;
    const std::unique_ptr<KvCache> whole = f.cache("full:kv_dtype=f32");
    const LanePrefill prompt{whole.get(), {}, &out};
    f.backend->prefill(f.tokens, {&prompt, 1}, &tiles, {});
    const reference::TempFolder folder("calibration");
    const std::filesystem::path path = folder.path() / "queries.safetensors";
    write_calibration(path, f.model->config().n_layers, f.model->config().n_heads, tiles.moments);
    const auto read = read_calibration(path);
    EXPECT_EQ(read->n_layers, 3);
    EXPECT_EQ(read->n_heads, 6);
    EXPECT_EQ(read->head_dim, 8);
    EXPECT_EQ(read->n_pairs, 4);
    EXPECT_TRUE(read->has_covariance);
    ASSERT_EQ(read->heads.size(), tiles.moments.size());
    EXPECT_NEAR(read->heads[7].mean[3], tiles.moments[7].mean[3], 1e-6);
    EXPECT_NEAR(read->heads[7].lengths[2], tiles.moments[7].lengths[2], 1e-6);
    EXPECT_NEAR(read->heads[7].covariance[9], tiles.moments[7].covariance[9], 1e-6);
    const std::string with = fmt::format(",calibration=({})", path.string());
    const std::string expected = "expected:budget=30,alloc=uniform,ahead=64",
                      tri = "tri:budget=30,sinks=4,evict=prompt,pool=max,buffer=0",
                      late = "tri:budget=30,sinks=4,buffer=0";
    const std::vector<std::string> specs = {expected, expected + with, tri, tri + with, late, late + with};
    const reference::LaneRows rows =
        reference::run_engine(f.model, specs, f.tokens, std::vector<int>{7, 9, 4});
    for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
        const RowOutput &own = rows[i][0], &file = rows[i + 1][0];
        ASSERT_EQ(own.values.scores.size(), file.values.scores.size());
        for (std::size_t p = 0; p < own.values.scores.size(); ++p)
            ASSERT_NEAR(own.values.scores[p], file.values.scores[p],
                        1e-4 * (1 + std::abs(own.values.scores[p])))
                << specs[i] << ", " << p;
        EXPECT_FALSE(own.evictions.empty());
    }
    // Nothing is kept of the lane's own queries, so a device can rank by the file in any row.
    const std::unique_ptr<Backend> cuda = reference::cuda_backend(f.model);
    const std::vector<std::string> by_file = {tri + with, late + with};
    const reference::LaneRows on_device =
        reference::run_backend(*cuda, f.model, by_file, f.tokens, std::vector<int>{7, 9, 4});
    for (std::size_t t = 0; t < 4; ++t) {
        EXPECT_EQ(on_device[0][t].evictions, rows[3][t].evictions) << t;
        EXPECT_EQ(on_device[1][t].evictions, rows[5][t].evictions) << t;
    }
    EXPECT_FALSE(rows[5][1].evictions.empty());
    // Later rows change the lane's own statistics, and not those of the file.
    EXPECT_NE(rows[4][2].values.scores, rows[5][2].values.scores);
    const ResolvedPolicy policy = resolve(parse_lane_spec(late + with).policy, 72, 3);
    EXPECT_EQ(policy.kept_queries(), 0) << "nothing need be kept of the lane's own";
    EXPECT_EQ(resolve(parse_lane_spec(late).policy, 72, 3).kept_queries(), 256);
    // The spec prints, and reads, the file; a text of others opens none.
    const LaneSpec lane = parse_lane_spec(late + with);
    EXPECT_NE(format_lane_spec(lane).find(with.substr(1)), std::string::npos) << format_lane_spec(lane);
    EXPECT_EQ(parse_lane_spec(format_lane_spec(lane)), lane);
}

std::string refusal_of(const std::string& spec) {
    try {
        (void)parse_lane_spec(spec);
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

TEST(Kvpress, HostileCalibrationsAreRefused) {
    const reference::TempFolder folder("hostile-calibration");
    const auto refused = [&](const std::string& bytes) {
        const std::filesystem::path path = folder.path() / "queries.safetensors";
        write_text_file(path, bytes);
        return refusal_of(fmt::format("tri:budget=9,calibration=({})", path.string()));
    };
    const auto file = [](std::string header, std::size_t n_data) {
        std::string bytes(8, '\0');
        const std::uint64_t length = header.size();
        std::memcpy(bytes.data(), &length, 8);
        return bytes + header + std::string(n_data, '\0');
    };
    EXPECT_NE(refused("PK\3\4 pickled").find("pickled"), std::string::npos);
    EXPECT_NE(refused(file("{}", 0)).find("no tensor mean"), std::string::npos);
    EXPECT_NE(refused("").find("queries.safetensors"), std::string::npos);
    const std::string mean = R"("mean":{"dtype":"F32","shape":[1,1,4],"data_offsets":[0,16]})";
    EXPECT_NE(refused(file("{" + mean + "}", 16)).find("no tensor length"), std::string::npos);
    EXPECT_NE(
        refused(file("{" + mean + R"(,"length":{"dtype":"F32","shape":[1,1,3],"data_offsets":[16,28]}})", 28))
            .find("do not go together"),
        std::string::npos)
        << "three pairs of four channels";
    std::string nan =
        file("{" + mean + R"(,"length":{"dtype":"F32","shape":[1,1,2],"data_offsets":[16,24]}})", 24);
    EXPECT_EQ(refused(nan), "accepted");
    nan[nan.size() - 1] = nan[nan.size() - 2] = '\x7f';
    nan[nan.size() - 2] = '\xc0';
    EXPECT_NE(refused(nan).find("not finite"), std::string::npos);
    EXPECT_NE(refusal_of("expected:budget=9,calibration=(/nowhere/x.safetensors)").find("nowhere"),
              std::string::npos);
}

}  // namespace
}  // namespace keyhole::test_kvpress
