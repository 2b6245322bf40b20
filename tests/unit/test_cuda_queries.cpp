// `expected` and `tri` by a calibration on the device: the kernels' ranks against the host's to the bit, and
// sessions on the host executor against the CPU. KEYHOLE_SELECTIONS=N ranks N times.
#include "engine/backend/common/query_statistics.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/choice_launch.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/index.h"
#include "engine/model/model.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/different_tokens.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/two_head_lane.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

namespace keyhole::cuda::test_cuda_queries {
namespace {

constexpr int kKv = 2, kReaders = 4, kStride = 80;

int n_rounds() {
    const char* wanted = std::getenv("KEYHOLE_SELECTIONS");
    return wanted != nullptr ? std::atoi(wanted) : 200;
}

/// Numbers of a float, as a calibration's file holds them.
std::vector<double> random_floats(std::mt19937& random, std::size_t n, double shift = 0) {
    std::normal_distribution<double> normal(shift, 1);
    std::vector<double> out(n);
    for (double& x : out) x = static_cast<double>(static_cast<float>(normal(random)));
    return out;
}

/// Moments of some random queries.
QueryMoments random_moments(std::mt19937& random, int head_dim, const Rotary* rotary) {
    std::vector<std::vector<float>> rows;
    std::vector<const float*> begins;
    for (int i = 0; i < 12; ++i) {
        const std::vector<double> row = random_floats(random, to_index(head_dim), 0.4);
        rows.emplace_back(row.begin(), row.end());
    }
    for (const std::vector<float>& row : rows) begins.push_back(row.data());
    QueryMoments of = query_moments(begins, head_dim, rotary);
    for (auto* numbers : {&of.mean, &of.covariance, &of.lengths})
        for (double& x : *numbers) x = static_cast<double>(static_cast<float>(x));
    return of;
}

/// Two KV heads, each read by two query heads, and what is known of these.
struct Round {
    int head_dim, n, row, ahead;
    Rotary rotary;
    RowRule rule{};
    std::vector<std::int32_t> positions;  // in text order
    std::vector<std::uint8_t> pinned;     // the same
    std::vector<float> keys[kKv];         // the same, [n, head_dim]
    std::vector<QueryMoments> queries;    // of the readers

    explicit Round(std::mt19937& random) {
        const auto below = [&](int limit) { return static_cast<int>(random() % to_index(limit)); };
        head_dim = 16 + 8 * below(4);
        n = 1 + below(70);
        row = 3 * n + below(50);
        ahead = 1 + below(30);
        rotary.dims = head_dim - 4 * below(3);
        rotary.interleaved = below(2) == 0;
        rotary.magnitude = below(2) == 0 ? 1.0f : 1.25f;
        for (int f = 0; f < rotary.dims / 2; ++f)
            rotary.inverse_frequency.push_back(std::pow(10000.0, -2.0 * f / rotary.dims));
        rule.evicts = 1;
        rule.sinks = below(5);
        rule.newest = below(4);
        rule.pool = below(3);
        for (int i = 0; i < n; ++i) {
            positions.push_back(3 * i);
            pinned.push_back(below(9) == 0 ? 1 : 0);
        }
        for (std::vector<float>& own : keys)
            for (const double x : random_floats(random, to_index(n * head_dim), 0.3))
                own.push_back(static_cast<float>(x));
        for (int r = 0; r < kReaders; ++r) queries.push_back(random_moments(random, head_dim, &rotary));
    }

    double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }

    /// By the host's functions, [KV head][token].
    std::vector<float> on_host(Quantity quantity) const {
        std::vector<std::uint8_t> competes;
        for (int i = 0; i < n; ++i)
            competes.push_back(positions[to_index(i)] >= rule.sinks && i < n - rule.newest &&
                               pinned[to_index(i)] == 0);
        std::vector<float> out;
        for (int g = 0; g < kKv; ++g) {
            std::vector<float> pooled(to_index(n));
            for (int r = 0; r < 2; ++r) {
                const RankedKeys of{positions, keys[g], head_dim, &rotary};
                const QueryMoments& own = queries[to_index(2 * g + r)];
                const std::vector<float> ranks =
                    quantity == Quantity::tri
                        ? tri_scores(turned_keys(of, row, tri_offsets()), own, competes)
                        : expected_attention(turned_keys(of, row, expected_offsets(ahead)), own, rule.sinks,
                                             scale());
                pool_more(static_cast<Pool>(rule.pool), r == 0, ranks.data(), n, pooled.data());
            }
            finish_pool(static_cast<Pool>(rule.pool), 2, n, pooled.data());
            out.insert(out.end(), pooled.begin(), pooled.end());
        }
        return out;
    }

    /// By the kernels, with slots in a random order.
    std::vector<float> on_device(Quantity quantity, std::mt19937& random) const {
        const int capacity = n + 3;
        std::vector<std::int32_t> order(kKv * kStride), of_slot(to_index(capacity), -1);
        std::vector<std::uint8_t> pins(to_index(capacity), 0);
        std::vector<int> slots(to_index(n));
        for (int i = 0; i < n; ++i) slots[to_index(i)] = i;
        std::shuffle(slots.begin(), slots.end(), random);
        std::vector<float> packs[kKv];
        std::vector<DeviceHead<float>> heads;
        for (int g = 0; g < kKv; ++g) {
            packs[g].assign(to_index(capacity * head_dim), NAN);
            for (int i = 0; i < n; ++i) {
                const int slot = slots[to_index(i)];
                order[to_index(g * kStride + i)] = slot;
                of_slot[to_index(slot)] = positions[to_index(i)];
                pins[to_index(slot)] = pinned[to_index(i)];
                for (int c = 0; c < head_dim; ++c)
                    packs[g][to_index((c / 8 * capacity + slot) * 8 + c % 8)] =
                        keys[g][to_index(i * head_dim + c)];
            }
            heads.push_back({packs[g].data(), nullptr, of_slot.data(), pins.data(), n, capacity});
        }
        FormulaTable formula;
        formula.uses = std::uint64_t{1} << static_cast<int>(quantity);
        std::vector<float> mean, covariance;
        std::vector<double> lacks, scales(kReaders, scale());
        for (const QueryMoments& of : queries) {
            for (const double x : of.mean) mean.push_back(static_cast<float>(x));
            for (const double x : of.covariance) covariance.push_back(static_cast<float>(x));
            const std::vector<double> lack = lacking_lengths(of, &rotary);
            lacks.insert(lacks.end(), lack.begin(), lack.end());
        }
        const std::vector<double> of_expected =
                                      MeanTurn(&rotary, row + 1, expected_offsets(ahead)).at(row + 1.0),
                                  of_tri = MeanTurn(&rotary, row + 1, tri_offsets()).at(row + 1.0);
        const LaneQueries known{of_expected.data(), of_tri.data(), scales.data(),         mean.data(),
                                covariance.data(),  lacks.data(),  rotated_pairs(&rotary)};
        reference::TwoHeadLane lane(heads, rule, formula, order, kStride);
        lane.view.row = row;
        lane.view.queries = &known;
        ChoiceShape shape;
        shape.stride = kStride;
        shape.n_kv_heads = shape.kv_stride = kKv;
        shape.n_readers = kReaders;
        shape.head_dim = head_dim;
        std::vector<double> logits(kReaders * kStride, NAN);
        std::vector<float> ranks(kKv * kStride, NAN), out;
        const auto seed = static_cast<unsigned>(random());
        launch_queries(&lane.view, lane.table(), shape, quantity, logits.data(), ranks.data(),
                       [&](const auto& kernel, const Grid& grid) {
                           run_on_host(kernel, grid, 32 + seed % 3 * 32, seed);
                       });
        for (int g = 0; g < kKv; ++g)
            out.insert(out.end(), ranks.begin() + g * kStride, ranks.begin() + g * kStride + n);
        return out;
    }
};

TEST(CudaQueries, RanksHaveTheBitsOfTheHost) {
    std::mt19937 random(8);
    for (int i = 0; i < n_rounds(); ++i) {
        const Round round(random);
        for (const Quantity quantity : {Quantity::expected, Quantity::tri}) {
            const std::vector<float> host = round.on_host(quantity),
                                     device = round.on_device(quantity, random);
            ASSERT_EQ(host.size(), device.size());
            for (std::size_t t = 0; t < host.size(); ++t)
                ASSERT_EQ(std::memcmp(&host[t], &device[t], sizeof(float)), 0)
                    << "round " << i << ", " << (quantity == Quantity::tri ? "tri" : "expected") << ", " << t
                    << ": " << host[t] << " and " << device[t];
        }
    }
}

/// A calibration of random queries for a model, in a file.
struct CalibrationFile {
    reference::TempFolder folder{"queries"};
    std::string option;

    explicit CalibrationFile(const Model& model) {
        std::mt19937 random(4);
        const ModelConfig& c = model.config();
        std::vector<QueryMoments> heads;
        for (int i = 0; i < c.n_layers * c.n_heads; ++i)
            heads.push_back(random_moments(random, c.head_dim, rotary_of(c, 0)));
        const std::filesystem::path path = folder.path() / "queries.safetensors";
        write_calibration(path, c.n_layers, c.n_heads, heads);
        option = fmt::format(",calibration=({})", path.string());
    }
};

constexpr const char* kSpecs[] = {
    "expected:budget=7,alloc=uniform,evict=always,ahead=20",
    "expected:budget=9,evict=always,ahead=5,sinks=0,pool=max",
    "expected:budget=6,alloc=uniform,evict=decode,scope=layer,ahead=64",
    "expected:budget=8,alloc=global,evict=always,buffer=3,every=2",
    "tri:budget=7,buffer=0",
    "tri:budget=9,buffer=3,pool=max,sinks=2,recent=1",
    "tri:budget=8,buffer=2,evict=always,scope=layer,pool=sum",
    "key:budget=8,choose=(expected+rank(tri)/count)",
    "key:budget=7,choose=(smooth(tri, avg, 3)*vnorm),evict=always",
};

TEST(CudaQueries, SessionsKeepWhatTheCpuKeeps) {
    for (const int n_kv_heads : {1, 2, 4}) {
        SCOPED_TRACE(fmt::format("{} KV heads", n_kv_heads));
        reference::TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        const reference::TinyModel tiny(shape);
        const std::shared_ptr<const Model> model = load_model(tiny.folder());
        const CalibrationFile file(*model);
        std::vector<std::string> specs;
        for (const char* spec : kSpecs) {
            specs.push_back(spec + file.option);
            EXPECT_FALSE(has_no_kernel(resolve(parse_lane_spec(specs.back()).policy, 14, 20))) << spec;
        }
        // For these what the choice reads comes to the host.
        for (const std::string& spec :
             {"tri:budget=9,buffer=2,protect=2..5" + file.option, std::string("tri:budget=9,buffer=2"),
              std::string("expected:budget=8,evict=always,ahead=20")}) {
            specs.push_back(spec);
            EXPECT_TRUE(has_no_kernel(resolve(parse_lane_spec(spec).policy, 14, 20))) << spec;
        }
        const std::vector<int> tokens =
            reference::different_tokens(34, 70u + static_cast<unsigned>(n_kv_heads));
        const std::span<const int> all(tokens);
        const reference::LaneRows cpu = reference::run_engine(model, specs, all.first(14), all.subspan(14));
        const std::unique_ptr<Backend> cuda = reference::cuda_backend(model);
        const reference::LaneRows device =
            reference::run_backend(*cuda, model, specs, all.first(14), all.subspan(14));
        for (std::size_t lane = 0; lane < specs.size(); ++lane) {
            std::size_t n_gone = 0;
            for (std::size_t row = 0; row < cpu[lane].size(); ++row) {
                ASSERT_EQ(device[lane][row].evictions, cpu[lane][row].evictions)
                    << specs[lane] << ", " << row;
                if (row > 0) n_gone += cpu[lane][row].evictions.empty() ? 0 : 1;
            }
            EXPECT_GT(n_gone, 3u) << specs[lane];
        }
    }
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_queries
